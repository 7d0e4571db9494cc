"""A tree of Python sources as the audit sees it: immutable, hashed, with the parts named that could not be read."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from mla_contract.audit.source import AuditError, SourceProblem, UnreadableSource
from mla_contract.audit.source.archive import is_archive, read_archive
from mla_contract.audit.source.walk import Walk, source_digest

PACKAGE = "vllm"

_INIT = f"{PACKAGE}/__init__.py"
_CORE = ("v1", "attention", "model_executor", "worker")
_NOT_PLUGINS = frozenset({"tests", "test", "docs", "doc", "examples", "benchmarks", "tools", "scripts", PACKAGE})
_EXPECTED = f"a checkout, an unpacked tree, a wheel or a source distribution with {_INIT}, or that package itself"
_HELP = "name the directory that holds the vllm package, or use --release X.Y.Z or --installed"
_METADATA_VERSION = re.compile(r"^Version:[ \t]*(\S+)", re.MULTILINE)
_METADATA_NAME = re.compile(r"^Name:[ \t]*vllm[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One Python file.

    Attributes:
        path: Path relative to the root of its tree, with forward slashes.
        data: Its bytes.
        digest: Digest of its bytes.
    """

    path: str
    data: bytes
    digest: str

    def text(self) -> str:
        """Return the decoded text with newlines as line feeds; a BOM and a PEP 263 cookie are honoured.

        Raises:
            UnreadableSource: The bytes are not what the encoding of the file says.
        """
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(self.data).readline)
            text = self.data.decode(encoding)
        except UnicodeDecodeError as error:
            line = self.data.count(b"\n", 0, error.start) + 1
            raise UnreadableSource(self.path, line, f"not {error.encoding}: {error.reason}") from error
        except (SyntaxError, LookupError, ValueError) as error:
            raise UnreadableSource(self.path, self._undecodable_line(), str(error)) from error
        return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text

    def _undecodable_line(self) -> int:
        try:
            self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            return self.data.count(b"\n", 0, error.start) + 1
        return 1


@dataclass(frozen=True, slots=True)
class SourceTree:
    """The Python files of one tree.

    Attributes:
        root: Directory that the paths are relative to, or the archive.
        files: Files by path.
        label: What reports call the tree.
        problems: What could not be read.
        metadata_version: Version in the metadata of the distribution, or None.
    """

    root: Path
    files: Mapping[str, SourceFile]
    label: str
    problems: tuple[SourceProblem, ...] = ()
    metadata_version: str | None = None


def open_tree(path: Path) -> SourceTree:
    """Open a vLLM tree; only its ``vllm`` package is read.

    Args:
        path: Checkout, unpacked tree, wheel, source distribution, or the package directory itself.

    Raises:
        AuditError: There is nothing at the path, or no vLLM in it.
    """
    if not path.exists():
        raise AuditError(f"{path}: no such file or directory", _HELP, expected=_EXPECTED)
    if path.is_file():
        return _open_archive(path)
    if not path.is_dir():
        raise AuditError(f"{path}: neither a directory nor an archive", _HELP, expected=_EXPECTED)
    for root in (path, path / "src"):
        if (root / _INIT).is_file():
            return _open_directory(root, root / PACKAGE, str(path))
    if (path / "__init__.py").is_file() and any((path / name).is_dir() for name in _CORE):
        return _open_directory(path.resolve().parent, path, str(path))
    got = "an empty directory" if _is_empty(path) else f"a directory without {_INIT}"
    raise AuditError(f"{path}: holds no vLLM", _HELP, expected=_EXPECTED, got=got)


def open_plugin(path: Path) -> SourceTree:
    """Open an out-of-tree package: a package directory, or a directory (``src`` too) with packages in it.

    Raises:
        AuditError: There is no Python package at the path.
    """
    help_ = "name the package directory of the plugin, or the directory that holds it"
    if not path.is_dir():
        raise AuditError(f"{path}: no such directory", help_, expected="a directory with a Python package")
    walk = Walk()
    if (path / "__init__.py").is_file():
        root, packages = path.resolve().parent, [path.resolve()]
    else:
        root, packages = next(
            ((base, found) for base in (path, path / "src") if (found := _plugin_packages(base))), (path, [])
        )
    for package in packages:
        walk.read(package, f"{package.name}/")
    if not walk.files:
        raise AuditError(f"{path}: holds no Python package", help_, expected="a directory with __init__.py in it")
    return SourceTree(root, _source_files(walk.files), str(path), tuple(walk.problems))


def overlay(base: SourceTree, *plugins: SourceTree) -> SourceTree:
    """Return one tree with the files of all; the root and the label are those of the base.

    Raises:
        AuditError: Two of them hold a file of the same path.
    """
    files = dict(base.files)
    problems = list(base.problems)
    for plugin in plugins:
        if clash := sorted(files.keys() & plugin.files.keys()):
            raise AuditError(
                f"{plugin.label}: {clash[0]} is also in {base.label}",
                "give each package once: one named with --plugin must not be part of the tree or of another plugin",
            )
        files.update(plugin.files)
        problems.extend(plugin.problems)
    return replace(base, files=MappingProxyType(files), problems=tuple(problems))


def _open_directory(root: Path, package: Path, label: str) -> SourceTree:
    walk = Walk()
    walk.read(package, f"{PACKAGE}/")
    version = None
    for pattern in ("vllm*.dist-info/METADATA", "PKG-INFO", "vllm*.egg-info/PKG-INFO"):
        for metadata in sorted(root.glob(pattern)):
            version = version or _metadata_version(_bytes_or_nothing(metadata))
    return SourceTree(root, _source_files(walk.files), label, tuple(walk.problems), version)


def _open_archive(path: Path) -> SourceTree:
    if not is_archive(path):
        raise AuditError(f"{path}: no archive that can be read", _HELP, expected=".whl, .zip or .tar.gz")
    members, problems = read_archive(path)
    roots = [name.removesuffix(_INIT) for name in members if name == _INIT or name.endswith("/" + _INIT)]
    if not roots:
        raise AuditError(f"{path}: holds no vLLM", _HELP, expected=_EXPECTED, got=f"an archive without {_INIT}")
    root = min(roots, key=lambda name: (name.count("/"), name))
    inside = f"{root}{PACKAGE}/"
    sources = {
        name.removeprefix(root): data
        for name, data in members.items()
        if name.startswith(inside) and name.endswith(".py")
    }
    version = next(
        (
            found
            for name, data in members.items()
            if not name.endswith(".py") and name.startswith(root) and (found := _metadata_version(data))
        ),
        None,
    )
    return SourceTree(path, _source_files(sources), str(path), tuple(problems), version)


def _source_files(files: Mapping[str, bytes]) -> Mapping[str, SourceFile]:
    return MappingProxyType({path: SourceFile(path, files[path], source_digest(files[path])) for path in sorted(files)})


def _plugin_packages(root: Path) -> list[Path]:
    found: Iterable[Path] = root.glob("*/__init__.py")
    return sorted(file.parent for file in found if file.parent.name not in _NOT_PLUGINS)


def _metadata_version(data: bytes) -> str | None:
    head = data.decode("utf-8", "replace").split("\n\n", 1)[0]
    match = _METADATA_VERSION.search(head) if _METADATA_NAME.search(head) else None
    return match.group(1) if match else None


def _bytes_or_nothing(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _is_empty(path: Path) -> bool:
    try:
        return next(path.iterdir(), None) is None
    except OSError as error:
        raise AuditError(f"{path}: cannot be read: {error.strerror}", _HELP) from error
