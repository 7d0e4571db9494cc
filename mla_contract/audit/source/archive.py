"""Reading Python files out of wheels, zip files and source distributions without unpacking them."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from mla_contract.audit.source import AuditError, SourceProblem
from mla_contract.audit.source.walk import MAX_BYTES, printable_name

ZIP_SUFFIXES = (".whl", ".zip")
TAR_SUFFIXES = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz")

_METADATA_NAMES = frozenset({"METADATA", "PKG-INFO"})
_BROKEN_HELP = "the file is incomplete, or not an archive: download it again"


def is_archive(path: Path) -> bool:
    """Return whether the name of a file is that of an archive that can be read."""
    return path.name.endswith(ZIP_SUFFIXES + TAR_SUFFIXES)


def read_archive(path: Path) -> tuple[dict[str, bytes], list[SourceProblem]]:
    """Read the Python and metadata files of an archive.

    Returns:
        Bytes by path inside the archive, and what was left out.

    Raises:
        AuditError: The file is not an archive, or is broken as a whole.
    """
    try:
        return _read_zip(path) if path.name.endswith(ZIP_SUFFIXES) else _read_tar(path)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, ValueError, NotImplementedError) as error:
        raise AuditError(f"{path}: cannot be read as an archive: {error}", _BROKEN_HELP) from error
    except OSError as error:
        raise AuditError(f"{path}: cannot be read: {error.strerror or error}", _BROKEN_HELP) from error


def is_safe_member(name: str) -> bool:
    """Return whether a name inside an archive stays below the place that the archive is unpacked to."""
    path = PurePosixPath(name)
    return not (path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name)


def _is_wanted(name: str) -> bool:
    return name.endswith(".py") or name.rpartition("/")[2] in _METADATA_NAMES


def _read_zip(path: Path) -> tuple[dict[str, bytes], list[SourceProblem]]:
    files: dict[str, bytes] = {}
    problems: list[SourceProblem] = []
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.is_dir() or not _is_wanted(info.filename):
                continue
            name = printable_name(info.filename)
            if not is_safe_member(info.filename):
                problems.append(SourceProblem(name, 1, "name leads out of the archive; not read"))
                continue
            try:
                with archive.open(info) as member:
                    data = member.read(MAX_BYTES + 1)
            # An encrypted member is a RuntimeError, an unknown compression a NotImplementedError.
            except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError) as error:
                problems.append(SourceProblem(name, 1, f"cannot be read from the archive: {error}"))
                continue
            _keep(name, data, files, problems)
    return files, problems


def _read_tar(path: Path) -> tuple[dict[str, bytes], list[SourceProblem]]:
    files: dict[str, bytes] = {}
    problems: list[SourceProblem] = []
    with tarfile.open(path) as archive:
        for info in archive:
            if not (info.isreg() and _is_wanted(info.name)):
                continue
            name = printable_name(info.name.removeprefix("./"))
            member = archive.extractfile(info) if is_safe_member(info.name) else None
            if member is None:
                problems.append(SourceProblem(name, 1, "name leads out of the archive; not read"))
                continue
            _keep(name, member.read(MAX_BYTES + 1), files, problems)
    return files, problems


def _keep(name: str, data: bytes, files: dict[str, bytes], problems: list[SourceProblem]) -> None:
    if len(data) > MAX_BYTES:
        problems.append(SourceProblem(name, 1, f"more than {MAX_BYTES} bytes; not read as source"))
    else:
        files[name] = data
