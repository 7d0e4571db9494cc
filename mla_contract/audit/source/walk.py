"""Reading Python files below a directory, whatever else it holds: loops, pipes, unreadable and endless things."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from mla_contract.audit.finding import Severity
from mla_contract.audit.source import SourceProblem

MAX_BYTES = 16 * 2**20
"""A larger file is not written by hand, and would take gigabytes to parse."""

MAX_DEPTH = 64
"""Deeper directories are not packages that anyone imports."""

SKIPPED_DIRECTORIES = frozenset({"__pycache__", "node_modules"})


def source_digest(data: bytes) -> str:
    """Return the content digest that caches are keyed by."""
    return blake2b(data, digest_size=16).hexdigest()


def printable_name(name: str) -> str:
    """Return a file name with undecodable bytes and control characters escaped, so that it fits on one output line."""
    return name if name.isprintable() else name.encode("unicode_escape").decode("ascii")


@dataclass(slots=True)
class Walk:
    """The Python files below one directory, and what was left out.

    Attributes:
        files: Bytes by path, relative to the directory given to ``read``.
        problems: What was left out, and why.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    problems: list[SourceProblem] = field(default_factory=list)

    def read(self, root: Path, prefix: str) -> None:
        """Read every Python file below a directory.

        Args:
            root: Directory to read.
            prefix: What the paths of its files begin with: empty, or a package name and a slash.
        """
        visited: set[tuple[int, int]] = set()
        limit = os.path.realpath(root)
        # Linked directories come after all real ones, so that a file keeps the path it has without links.
        pending: list[tuple[str, str, int]] = [(str(root), prefix, 0)]
        linked: list[tuple[str, str, int]] = []
        while pending or linked:
            is_link = not pending
            directory, name, depth = linked.pop() if is_link else pending.pop()
            if is_link and not _is_below(os.path.realpath(directory), limit):
                self._skip(name, "symbolic link that leaves the tree; not followed", Severity.INFO)
                continue
            try:
                status = os.stat(directory)
            except OSError as error:
                self._skip(name, f"cannot be read: {error.strerror}")
                continue
            identity = (status.st_dev, status.st_ino)
            if identity in visited:
                self._skip(name, "symbolic link to a directory that was read already; not followed", Severity.INFO)
            elif depth > MAX_DEPTH:
                self._skip(name, f"directory more than {MAX_DEPTH} levels deep; not read")
            else:
                visited.add(identity)
                self._read_directory(directory, name, depth, pending, linked)

    def _read_directory(
        self,
        directory: str,
        prefix: str,
        depth: int,
        pending: list[tuple[str, str, int]],
        linked: list[tuple[str, str, int]],
    ) -> None:
        for entry in self._entries(directory, prefix):
            name = printable_name(entry.name)
            is_source = entry.name.endswith(".py")
            try:
                if entry.is_dir():
                    if entry.name not in SKIPPED_DIRECTORIES and not entry.name.startswith("."):
                        target = linked if entry.is_symlink() else pending
                        target.append((entry.path, f"{prefix}{name}/", depth + 1))
                elif is_source:
                    self._read_file(entry, f"{prefix}{name}")
            except OSError as error:
                if is_source or entry.is_symlink():
                    severity = Severity.ERROR if is_source else Severity.INFO
                    self._skip(f"{prefix}{name}", f"cannot be read: {error.strerror}", severity)

    def _entries(self, directory: str, prefix: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(directory) as entries:
                yield from sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self._skip(prefix, f"directory cannot be read: {error.strerror}")

    def _read_file(self, entry: os.DirEntry[str], path: str) -> None:
        status = entry.stat()
        if not stat.S_ISREG(status.st_mode):
            self._skip(path, "no regular file; not read", Severity.INFO)
        elif status.st_size > MAX_BYTES:
            self._skip(path, f"{status.st_size} bytes, more than {MAX_BYTES}; not read as source")
        else:
            with open(entry.path, "rb", buffering=0) as file:
                self.files[path] = file.read(MAX_BYTES)

    def _skip(self, path: str, reason: str, severity: Severity = Severity.ERROR) -> None:
        self.problems.append(SourceProblem(path.rstrip("/") or ".", 1, reason, severity))


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)
