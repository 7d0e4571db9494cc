"""Fetching the Python sources of a released vLLM through pip, whole or not at all, into the user's cache."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import json
import os
import re
import shutil
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from mla_contract.audit.source import AuditError
from mla_contract.audit.source.archive import is_safe_member
from mla_contract.audit.source.cache import cache_root, digest_of
from mla_contract.audit.source.download import download_wheel
from mla_contract.audit.source.tree import SourceTree, open_tree

Progress = Callable[[int, float], None]
"""Told the bytes that have arrived and the seconds that have passed, a few times a second."""

_VERSION = re.compile(
    r"v?(\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?(?:\+[A-Za-z0-9]+(?:\.[A-Za-z0-9]+)*)?)"
)
_VERSION_LINE = re.compile(
    rb"^(?:__version__\s*=\s*version|__version__|version)\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE
)
_MARKER = ".complete"
_STALE_AFTER = 24 * 3600.0
_CACHE_HELP = "set MLA_CONTRACT_CACHE to a directory that can be written"
_BROKEN_HELP = "run the command again; if it stays, the package index serves a broken wheel"


def fetch_release(version: str, *, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Return a directory with the Python sources of a release, fetched unless the cache holds them whole.

    Args:
        version: Version of vLLM, such as ``0.33.0``.
        cache: Root of the caches, instead of the user's.
        progress: Called while the wheel arrives.

    Raises:
        AuditError: The version is none, cannot be had, arrived broken, or the cache cannot be written.
    """
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise AuditError(f"--release {version!r} is not a version", "give a released version of vLLM, such as 0.33.0")
    releases = cache_root(cache) / "releases"
    target = releases / match.group(1)
    if _is_complete(target):
        return target
    try:
        releases.mkdir(parents=True, exist_ok=True)
        _remove_stale(releases)
        work = Path(tempfile.mkdtemp(dir=releases, prefix=".work-"))
    except OSError as error:
        raise AuditError(f"{releases}: cannot be written: {error.strerror}", _CACHE_HELP) from error
    try:
        wheel = download_wheel(match.group(1), work, progress)
        unpacked = work / "tree"
        unpack_sources(wheel, unpacked)
        wheel.unlink()
        _install(unpacked, target, work)
    except OSError as error:
        raise AuditError(f"{releases}: cannot be written: {error.strerror}", _CACHE_HELP) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def unpack_sources(wheel: Path, target: Path) -> None:
    """Unpack the Python sources of a wheel and check each against the hash in its RECORD.

    Raises:
        AuditError: The wheel is broken, incomplete, or names files outside the target.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            record = next((name for name in names if name.endswith(".dist-info/RECORD")), None)
            if record is None:
                raise AuditError(f"{wheel.name}: holds no RECORD, so it cannot be checked", _BROKEN_HELP)
            text = archive.read(record).decode("utf-8")
            metadata = record.removesuffix("RECORD") + "METADATA"
            for name, expected in _recorded(text, metadata):
                if not is_safe_member(name):
                    raise AuditError(f"{wheel.name}: names a file outside itself: {name!r}", _BROKEN_HELP)
                if name not in names:
                    raise AuditError(f"{wheel.name}: {name} is in its RECORD and missing", _BROKEN_HELP)
                data = archive.read(name)
                if (got := _record_hash(data)) != expected:
                    message = f"{wheel.name}: {name} is not what its RECORD says"
                    raise AuditError(message, _BROKEN_HELP, expected=expected or "a sha256 hash", got=got)
                _write(target / name, data)
            _write(target / record, text.encode("utf-8"))
    except (zipfile.BadZipFile, zlib.error, EOFError, UnicodeDecodeError, RuntimeError, csv.Error) as error:
        raise AuditError(f"{wheel.name}: did not arrive whole: {error}", _BROKEN_HELP) from error
    if not (target / "vllm" / "__init__.py").is_file():
        raise AuditError(f"{wheel.name}: holds no vllm package", "check the package index that pip is configured for")
    files = _listing(target)
    marker = {"files": len(files), "digest": digest_of(files)}
    (target / _MARKER).write_text(json.dumps(marker), encoding="utf-8")


def installed_tree() -> SourceTree:
    """Open the vLLM of the running environment without importing it.

    Raises:
        AuditError: There is none.
    """
    try:
        spec = importlib.util.find_spec("vllm")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        raise AuditError(
            "--installed: no vLLM in this environment",
            "run the audit with the Python that vLLM is installed for, or use --release X.Y.Z",
        )
    return open_tree(Path(spec.origin).parent)


def release_of(tree: SourceTree) -> str | None:
    """Return the release that a tree says it is, without a local suffix, or None."""
    generated = tree.files.get("vllm/_version.py")
    match = _VERSION_LINE.search(generated.data) if generated is not None else None
    version = match.group(1).decode("utf-8", "replace") if match else tree.metadata_version
    known = _VERSION.fullmatch(version.strip()) if version else None
    return known.group(1).split("+")[0] if known else None


def _recorded(text: str, metadata: str) -> Iterator[tuple[str, str]]:
    for row in csv.reader(text.splitlines()):
        if len(row) >= 2 and (row[0].endswith((".py", ".pyi")) or row[0] == metadata):
            yield row[0], row[1]


def _record_hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _listing(root: Path) -> list[str]:
    """Return every file below a directory with its size, sorted."""
    found = []
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            if name != _MARKER:
                found.append(f"{os.path.relpath(path, root).replace(os.sep, '/')} {os.path.getsize(path)}")
    return sorted(found)


def _is_complete(target: Path) -> bool:
    try:
        marker = json.loads((target / _MARKER).read_text(encoding="utf-8"))
        files = _listing(target)
    except (OSError, ValueError):
        return False
    return bool(marker == {"files": len(files), "digest": digest_of(files)})


def _install(unpacked: Path, target: Path, work: Path) -> None:
    """Move a checked tree to its place; whoever else finished first wins."""
    for attempt in range(5):
        try:
            os.rename(unpacked, target)
            return
        except OSError:
            if _is_complete(target):
                return
            if attempt == 4:
                raise
        try:
            os.rename(target, work / f"broken-{attempt}")
        except FileNotFoundError:
            continue


def _remove_stale(releases: Path) -> None:
    """Remove what a killed run left behind."""
    for path in releases.glob(".work-*"):
        if time.time() - path.stat().st_mtime > _STALE_AFTER:
            shutil.rmtree(path, ignore_errors=True)
