"""Whether anything in a tree may read a field: what the engine followed, and what only the text shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.drift.read_places import all_reads
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.index import module_name
from mla_contract.audit.model.nodes import literal_text, walk

if TYPE_CHECKING:
    from mla_contract.audit.project import Project
    from mla_contract.audit.source.tree import SourceFile

_WORD = b"etadata"
"""What every file contains that handles metadata, under whatever type."""


class Readers:
    """The reads of a tree, by name, collected from each file when first needed."""

    def __init__(self, project: Project) -> None:
        """Collect what the engine followed."""
        self._project = project
        self._engine: dict[str, set[ClassInfo]] = {}
        self._typed: dict[tuple[str, int, int, str], set[ClassInfo]] = {}
        for read in all_reads(project):
            key = (read.function.module.path, read.node.lineno, read.node.col_offset, read.attr)
            self._typed.setdefault(key, set()).add(read.holder)
            self._engine.setdefault(read.attr, set()).add(read.holder)
        parsed = project.index.parsed_paths()
        files = [file for file in project.index.tree.files.values() if _WORD in file.data]
        followed = {path for path, *_ in self._typed}
        # Most fields have a reader where the engine saw reads; files that are not parsed yet come last.
        self._files = sorted(files, key=lambda file: (file.path not in followed, file.path not in parsed, file.path))
        self._naming: dict[tuple[str, tuple[bytes, ...]], bool] = {}
        self._attributes: dict[str, dict[str, list[ast.expr]]] = {}

    def has_reader(self, name: str, relatives: list[ClassInfo], *, anywhere: bool) -> bool:
        """Return whether something may read a field.

        Args:
            name: Name of the field.
            relatives: The class that declares it, its bases and its subclasses.
            anywhere: Whether a read in any file counts, since no other class has a field of that name; otherwise only
                those in files that name a relative, or the builder or the backend that goes with one.
        """
        if any(holder in relatives for holder in self._engine.get(name, ())):
            return True
        dotted, quoted = f".{name}".encode(), f'"{name}"'.encode()
        words = () if anywhere else self._words(relatives)
        for file in self._files:
            if not (dotted in file.data or quoted in file.data):
                continue
            if not (anywhere or self._names_one(file, words)):
                continue
            for node in self._reads_in(file.path).get(name, ()):
                holders = self._typed.get((file.path, node.lineno, node.col_offset, name))
                if holders is None or any(holder in relatives for holder in holders):
                    return True
        return False

    def _reads_in(self, path: str) -> dict[str, list[ast.expr]]:
        """Return the attributes that a file reads by name; those of ``self`` are another object's."""
        found = self._attributes.get(path)
        if found is None:
            found = self._attributes[path] = {}
            module = self._project.index.get(module_name(path))
            for name, node in _attribute_reads(module.tree) if module is not None else ():
                found.setdefault(name, []).append(node)
        return found

    def _names_one(self, file: SourceFile, words: tuple[bytes, ...]) -> bool:
        """Return whether a file contains one of the names as a word."""
        key = (file.path, words)
        if key not in self._naming:
            self._naming[key] = any(
                word in file.data and re.search(rb"\b" + word + rb"\b", file.data) is not None for word in words
            )
        return self._naming[key]

    def _words(self, relatives: list[ClassInfo]) -> tuple[bytes, ...]:
        """Return the names of the classes through which a file handles the metadata, builder and backend included."""
        tops = {_outermost(cls) for cls in relatives}
        found = {cls.node.name for cls in tops}
        project = self._project
        for backend in (*project.mla_backends, *project.indexer_backends):
            built = {_outermost(c.cls) for c in project.builders[backend].events.constructs}
            if tops & (built | set(backend.metadata.cls.mro)):
                found |= {backend.builder.node.name, backend.cls.node.name}
        return tuple(name.encode() for name in sorted(found))


def _attribute_reads(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in walk(tree):
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if isinstance(node.ctx, ast.Load) and not own:
                yield node.attr, node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            name = literal_text(node.args[1]) if len(node.args) > 1 else None
            if name is not None:
                yield name, node


def _outermost(cls: ClassInfo) -> ClassInfo:
    return _outermost(cls.outer) if cls.outer is not None else cls
