"""All modules of a tree, parsed when first needed, and the resolution of names across them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.module import FunctionNode, Import, Module, parse_module
from mla_contract.audit.model.nodes import walk
from mla_contract.audit.source import UnreadableSource
from mla_contract.audit.source.tree import SourceTree

if TYPE_CHECKING:
    from mla_contract.audit.model.types import DeclaredType, TypeRef


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a module, or a method of a class."""

    module: Module
    node: FunctionNode
    owner: ClassInfo | None = None

    @property
    def qualname(self) -> str:
        """Return ``module:Class.name``."""
        prefix = f"{self.owner.name}." if self.owner else ""
        return f"{self.module.name}:{prefix}{self.node.name}"

    def mentions(self, word: str) -> bool:
        """Return whether the source of the function contains a word."""
        return any(word in line for line in self.module.lines[self.node.lineno - 1 : self.node.end_lineno])


@dataclass(frozen=True, slots=True)
class External:
    """A name that the tree does not define."""

    module: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Assigned:
    """A module-level name bound to an expression."""

    module: Module
    value: ast.expr


Symbol = ClassInfo | Function | Module | Assigned | External


class ModuleIndex:
    """Modules of a tree by name, with lazily parsed contents.

    Files that do not parse are left out; the caller learns of them from the syntax check of the whole tree.
    """

    def __init__(self, tree: SourceTree) -> None:
        """Index the files of a tree without reading them."""
        self.tree = tree
        self._paths = {module_name(path): path for path in tree.files if path.endswith(".py")}
        self._modules: dict[str, Module | None] = {}
        self._classes: dict[int, ClassInfo] = {}
        self._subclasses: dict[str, list[ClassInfo]] = {}
        self._subclasses_at = -1
        self._generators: dict[int, bool] = {}
        self._listed: dict[str, tuple[ClassInfo, ...]] = {}
        self.type_params: dict[ClassInfo, tuple[str, ...]] = {}
        self.field_types: dict[tuple[TypeRef, ClassInfo, str], DeclaredType] = {}
        self._containing: dict[tuple[tuple[bytes, ...], bytes], tuple[Module, ...]] = {}

    def parsed_paths(self) -> frozenset[str]:
        """Return the files that were parsed, well or not."""
        return frozenset(self._paths[name] for name in self._modules if name in self._paths)

    def get(self, name: str) -> Module | None:
        """Return a module, or None where the tree has none or it does not parse."""
        if name not in self._modules:
            self._modules[name] = self._parse(name)
        return self._modules[name]

    def containing(self, *words: bytes, also: bytes = b"") -> tuple[Module, ...]:
        """Return, by name, the modules whose source contains one of the words.

        Args:
            words: Words of which one suffices.
            also: A word that has to be there as well.
        """
        key = (words, also)
        if key not in self._containing:
            shared = _common_end(words)
            sources = ((name, data) for name, data in self._sources() if also in data and shared in data)
            names = [name for name, data in sources if any(word in data for word in words)]
            self._containing[key] = tuple(module for module in map(self.get, names) if module is not None)
        return self._containing[key]

    def _sources(self) -> Iterator[tuple[str, bytes]]:
        for name, path in sorted(self._paths.items()):
            yield name, self.tree.files[path].data

    def class_info(self, module: Module, node: ast.ClassDef, outer: ClassInfo | None = None) -> ClassInfo:
        """Return the one ClassInfo of a class definition."""
        info = self._classes.get(id(node))
        if info is None:
            info = self._classes[id(node)] = ClassInfo(self, module, node, outer)
        return info

    def classes(self, module: Module) -> tuple[ClassInfo, ...]:
        """Return the module-level classes of a module, and the classes nested in them."""
        known = self._listed.get(module.name)
        if known is None:
            nodes = [b for bindings in module.bindings.values() for b in bindings if isinstance(b, ast.ClassDef)]
            known = tuple(info for node in nodes for info in self._with_nested(self.class_info(module, node)))
            self._listed[module.name] = known
        return known

    def is_generator(self, function: Function) -> bool:
        """Return whether a function yields."""
        known = self._generators.get(id(function.node))
        if known is None:
            yields = function.mentions("yield")
            known = yields and any(isinstance(n, ast.Yield | ast.YieldFrom) for n in walk(function.node))
            self._generators[id(function.node)] = known
        return known

    def subclasses(self, cls: ClassInfo) -> tuple[ClassInfo, ...]:
        """Return the proper subclasses of a class among the modules parsed so far."""
        parsed = tuple(module for module in self._modules.values() if module is not None)
        if len(parsed) != self._subclasses_at:
            self._subclasses_at = len(parsed)
            self._subclasses = {}
            for module in parsed:
                for info in self.classes(module):
                    for base in info.mro[1:]:
                        self._subclasses.setdefault(base.qualname, []).append(info)
        return tuple(self._subclasses.get(cls.qualname, ()))

    def functions(self, module: Module) -> Iterator[Function]:
        """Yield the functions of a module and the methods of its classes."""
        for bindings in module.bindings.values():
            for binding in bindings:
                if isinstance(binding, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield Function(module, binding)
        for info in self.classes(module):
            for node in info.methods.values():
                yield Function(module, node, info)

    def resolve(self, module: Module, name: str, _seen: frozenset[tuple[str, str]] = frozenset()) -> Symbol | None:
        """Return what a module-level name of a module stands for, or None where nothing binds it.

        Where several statements bind a name, the first definition that the tree can follow wins.
        """
        if (module.name, name) in _seen:
            return None
        seen = _seen | {(module.name, name)}
        fallback: Symbol | None = None
        for binding in module.bindings.get(name, ()):
            symbol = self._symbol(module, binding, seen)
            if symbol is not None and not isinstance(symbol, External):
                return symbol
            fallback = fallback or symbol
        if fallback is not None:
            return fallback
        for star in module.stars:
            source = self.get(star)
            symbol = self.resolve(source, name, seen) if source else None
            if symbol is not None:
                return symbol
        return None

    def resolve_import(self, target: Import, seen: frozenset[tuple[str, str]] = frozenset()) -> Symbol:
        """Return what an imported name stands for."""
        if target.name is None:
            return self.get(target.module) or External(target.module)
        source = self.get(target.module)
        if source is not None:
            symbol = self.resolve(source, target.name, seen)
            if symbol is not None:
                return symbol
        return self.get(f"{target.module}.{target.name}") or External(target.module, target.name)

    def resolve_expr(self, module: Module, node: ast.expr) -> Symbol | None:
        """Return what a dotted expression stands for at module level."""
        if isinstance(node, ast.Name):
            return self.resolve(module, node.id)
        if isinstance(node, ast.Attribute):
            base = self.resolve_expr(module, node.value)
            if isinstance(base, Module):
                found = self.resolve(base, node.attr)
                return found or self.get(f"{base.name}.{node.attr}") or External(base.name, node.attr)
            if isinstance(base, ClassInfo):
                return base.nested.get(node.attr)
            if isinstance(base, External):
                return External(f"{base.module}.{base.name}" if base.name else base.module, node.attr)
        return None

    def _symbol(self, module: Module, binding: object, seen: frozenset[tuple[str, str]]) -> Symbol | None:
        if isinstance(binding, ast.ClassDef):
            return self.class_info(module, binding)
        if isinstance(binding, ast.FunctionDef | ast.AsyncFunctionDef):
            return Function(module, binding)
        if isinstance(binding, Import):
            return self.resolve_import(binding, seen)
        if isinstance(binding, ast.Name) and (module.name, binding.id) not in seen:
            return self.resolve(module, binding.id, seen) or Assigned(module, binding)
        return Assigned(module, binding) if isinstance(binding, ast.expr) else None

    def _with_nested(self, info: ClassInfo) -> Iterator[ClassInfo]:
        yield info
        for nested in info.nested.values():
            yield from self._with_nested(nested)

    def _parse(self, name: str) -> Module | None:
        path = self._paths.get(name)
        if path is None:
            return None
        try:
            module = parse_module(name, path, self.tree.files[path].text())
        except (SyntaxError, ValueError, RecursionError, MemoryError, UnreadableSource):
            return None
        module.index = self
        return module


def module_name(path: str) -> str:
    """Return the dotted module name of a path in a tree."""
    parts = path.removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def _common_end(words: tuple[bytes, ...]) -> bytes:
    """Return the longest text that all words end with; a source without it has none of them."""
    shortest = min(words, key=len)
    return next(shortest[at:] for at in range(len(shortest) + 1) if all(word.endswith(shortest[at:]) for word in words))
