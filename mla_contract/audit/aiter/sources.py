"""The sources of aiter: where its package is, and what a dotted name in it stands for. Nothing of it is imported."""

from __future__ import annotations

import ast
from pathlib import Path
from types import MappingProxyType

from mla_contract.audit.model.index import External, Function, ModuleIndex, Symbol
from mla_contract.audit.model.module import Module
from mla_contract.audit.model.nodes import literal_text
from mla_contract.audit.source import AuditError
from mla_contract.audit.source.archive import is_archive, read_archive
from mla_contract.audit.source.tree import SourceFile, SourceTree
from mla_contract.audit.source.walk import Walk, source_digest

PACKAGE = "aiter"
_HELP = "name a checkout of aiter, its package directory, or the site-packages directory that holds it"


class AiterSources:
    """The package, parsed where a call needs it.

    Attributes:
        label: The path it was opened at.
    """

    def __init__(self, path: Path) -> None:
        """Open a checkout, an installed or unpacked package, or a wheel.

        Raises:
            AuditError: There is no aiter at the path.
        """
        self.label = str(path)
        files = {name: SourceFile(name, data, source_digest(data)) for name, data in sorted(_read(path).items())}
        self._index = ModuleIndex(SourceTree(path, MappingProxyType(files), self.label))
        self._old_names: dict[str, dict[str, str]] = {}

    def digests(self) -> list[str]:
        """Return a line for each file of the package that changes when the file does."""
        return [f"{path} {file.digest}" for path, file in self._index.tree.files.items()]

    def module(self, name: str) -> Module | None:
        """Return a module by its dotted name; a name that a package maps to a new one is followed."""
        known = self._index.get(name)
        if known is not None:
            return known
        package, _, last = name.rpartition(".")
        if not package:
            return None
        parent = self.module(package)
        if parent is None:
            return None
        if parent.name != package:
            return self._index.get(f"{parent.name}.{last}")
        new = self._names_of(parent).get(last)
        if new is None:
            return None
        return self._index.get(f"{package}.{new}") or self._index.get(new)

    def member(self, module: Module, name: str) -> Symbol | None:
        """Return what a name of a module stands for; None where the module certainly lacks it."""
        found = self._index.resolve(module, name)
        if found is not None and not (isinstance(found, External) and _is_inside(found)):
            return found
        nested = self.module(f"{module.name}.{name}")
        if nested is not None:
            return nested
        return External(module.name, name) if self._is_dynamic(module) else None

    def definition(self, module: Module, name: str) -> Function | None:
        """Return the function definition that a name of a module stands for, or None."""
        found = self.member(module, name)
        return found if isinstance(found, Function) else None

    def _is_dynamic(self, module: Module) -> bool:
        """Return whether a module makes up names when asked, or star-imports what the package does not hold."""
        if "__getattr__" in module.bindings:
            return True
        return any(self.module(star) is None for star in module.stars)

    def _names_of(self, package: Module) -> dict[str, str]:
        """Return the old module names that a package maps to new ones: its module-level dicts from str to str."""
        if package.name not in self._old_names:
            found: dict[str, str] = {}
            for bindings in package.bindings.values():
                for binding in bindings:
                    if isinstance(binding, ast.Dict):
                        for key, value in zip(binding.keys, binding.values, strict=True):
                            old, new = literal_text(key), literal_text(value)
                            if old is not None and new is not None:
                                found.setdefault(old, new)
            self._old_names[package.name] = found
        return self._old_names[package.name]


def _is_inside(symbol: External) -> bool:
    return symbol.module.partition(".")[0] == PACKAGE


def _read(path: Path) -> dict[str, bytes]:
    if path.is_file() and is_archive(path):
        members, _ = read_archive(path)
        inside = {n[n.index(f"{PACKAGE}/") :]: d for n, d in members.items() if _in_package(n) and n.endswith(".py")}
        if inside:
            return inside
    for package in (path / PACKAGE, path):
        if (package / "__init__.py").is_file() and (package.name == PACKAGE or (package / "ops").is_dir()):
            walk = Walk()
            walk.read(package, f"{PACKAGE}/")
            return walk.files
    raise AuditError(f"{path}: holds no aiter", _HELP, expected=f"a directory with {PACKAGE}/__init__.py")


def _in_package(name: str) -> bool:
    parts = name.split("/")
    return PACKAGE in parts[:2]
