"""What expressions of a module stand for in aiter: imported modules and functions, however they were fetched."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mla_contract.audit.model.index import Function, ModuleIndex
from mla_contract.audit.model.module import FunctionNode, Module, imported_names
from mla_contract.audit.model.nodes import literal_text, text_of, walk

PACKAGE = "aiter"
SET_ON_SELF = re.compile(r"\bself\.(\w+)\s*=[^=]")
COMMON = frozenset({"__init__", "forward", "build"})
ABSENCE = frozenset({"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"})


@dataclass(frozen=True, slots=True)
class Target:
    """A place in aiter.

    Attributes:
        module: Dotted module name.
        name: Name in it, possibly dotted, or None for the module itself.
        optional: Whether the code can do without: it catches the ImportError, or asks first.
        probes: Parameter names that the code looks for in the signature before it calls.
    """

    module: str
    name: str | None = None
    optional: bool = False
    probes: frozenset[str] = frozenset()

    @property
    def dotted(self) -> str:
        """Return the full dotted name."""
        return f"{self.module}.{self.name}" if self.name else self.module


@dataclass(frozen=True, slots=True)
class Several:
    """A tuple of values."""

    items: tuple[Value, ...]


Value = tuple[Target, ...] | Several
"""Alternatives in the order in which the code tries them, or a tuple of values."""

NOTHING: Value = ()


class Targets:
    """Names of one module, and the values that they have in terms of aiter."""

    def __init__(self, index: ModuleIndex, module: Module) -> None:
        """Read the module-level imports of a module."""
        self.index = index
        self.module = module
        self._results: dict[int, Value] = {}
        self._own: dict[str, Value] = {}
        _Scope(self, self._own, in_function=False).read(module.tree.body)
        self._on_self: dict[str, Value] | None = None
        self._sources: list[str] | None = None

    def may_call(self, function: Function) -> bool:
        """Return whether the text of a function names aiter, or something in the module that may lead to it."""
        text = _text(function)
        return PACKAGE in text or any(name in text for name in self._leads())

    def _leads(self) -> list[str]:
        """Return the names that lead to aiter: imported ones, functions that import it, attributes these set."""
        if self._sources is None:
            found = set(self._own)
            for function in self.index.functions(self.module):
                text = _text(function)
                if PACKAGE in text:
                    found.add(function.node.name)
                    found.update(SET_ON_SELF.findall(text))
            self._sources = sorted(found - COMMON)
        return self._sources

    def scope(self, function: FunctionNode) -> dict[str, Value]:
        """Return the names of a function with their values, nested functions included."""
        names = dict(self._own)
        _Scope(self, names, in_function=True).read(function.body)
        return names

    def value(self, node: ast.expr, names: dict[str, Value]) -> Value:
        """Return what an expression stands for."""
        if isinstance(node, ast.Name):
            return names.get(node.id, NOTHING)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                return self._attributes().get(node.attr, NOTHING)
            return _member(self.value(node.value, names), node.attr)
        if isinstance(node, ast.Call):
            return self._called(node, names)
        if isinstance(node, ast.IfExp):
            return _either(self.value(node.body, names), self.value(node.orelse, names))
        if isinstance(node, ast.Tuple):
            items = tuple(self.value(element, names) for element in node.elts)
            return Several(items) if any(item != NOTHING for item in items) else NOTHING
        return NOTHING

    def _called(self, node: ast.Call, names: dict[str, Value]) -> Value:
        name = text_of(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
        if name.rpartition(".")[2] == "import_module" and node.args:
            asked = not isinstance(node.args[0], ast.Constant)
            return tuple(Target(module, optional=asked) for module in _texts(node.args[0], names))
        attr = literal_text(node.args[1]) if name == "getattr" and len(node.args) >= 2 else None
        if attr is not None:
            found = _member(self.value(node.args[0], names), attr)
            return _optional(found) if len(node.args) > 2 else found
        function = self.index.resolve_expr(self.module, node.func) if name else None
        if isinstance(function, Function) and function.module is self.module:
            return self._result(function)
        return NOTHING

    def _result(self, function: Function) -> Value:
        """Return what a function of the module returns."""
        key = id(function.node)
        if key not in self._results:
            self._results[key] = NOTHING
            names = self.scope(function.node)
            result: Value = NOTHING
            for node in walk(function.node):
                if isinstance(node, ast.Return) and node.value is not None:
                    result = _either(result, self.value(node.value, names))
            probes = self.probes(function.node)
            if probes and isinstance(result, tuple):
                result = tuple(replace(target, probes=target.probes | probes) for target in result)
            self._results[key] = result
        return self._results[key]

    def probes(self, node: ast.AST, depth: int = 2) -> frozenset[str]:
        """Return the texts in code that looks at signatures; empty where it looks at none."""
        looks = False
        texts: set[str] = set()
        for child in walk(node):
            if isinstance(child, ast.Constant) and isinstance(child.value, str) and child.value.isidentifier():
                texts.add(child.value)
            elif isinstance(child, ast.Call) and isinstance(child.func, ast.Name | ast.Attribute):
                if text_of(child.func).rpartition(".")[2] in ("signature", "getfullargspec"):
                    looks = True
                elif depth:
                    found = self._callee(child)
                    if found is not None and found is not node and self._looks(found, depth - 1):
                        looks = True
                        texts |= self.probes(found, depth - 1)
        return frozenset(texts) if looks else frozenset()

    def _looks(self, node: ast.AST, depth: int) -> bool:
        for child in walk(node):
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Name | ast.Attribute):
                if text_of(child.func).rpartition(".")[2] in ("signature", "getfullargspec"):
                    return True
                found = self._callee(child) if depth else None
                if found is not None and found is not node and self._looks(found, depth - 1):
                    return True
        return False

    def _callee(self, node: ast.Call) -> FunctionNode | None:
        """Return the definition in this module that a call may reach, by name."""
        if isinstance(node.func, ast.Name):
            function = self.index.resolve(self.module, node.func.id)
            return function.node if isinstance(function, Function) else None
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            for cls in self.index.classes(self.module):
                if node.func.value.id in ("self", "cls", cls.node.name) and node.func.attr in cls.methods:
                    return cls.methods[node.func.attr]
        return None

    def _attributes(self) -> dict[str, Value]:
        """Return the attributes that methods of the module set on self, where they lead to aiter."""
        if self._on_self is None:
            self._on_self = {}
            for function in self.index.functions(self.module):
                if function.owner is None:
                    continue
                names: dict[str, Value] | None = None
                for node in walk(function.node):
                    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                        target = node.targets[0]
                        if isinstance(target.value, ast.Name) and target.value.id == "self":
                            names = self.scope(function.node) if names is None else names
                            value = self.value(node.value, names)
                            if value != NOTHING:
                                self._on_self[target.attr] = _either(self._on_self.get(target.attr, NOTHING), value)
        return self._on_self


class _Scope:
    """Fills the names of one scope from its statements, in order."""

    def __init__(self, targets: Targets, names: dict[str, Value], *, in_function: bool) -> None:
        self.targets = targets
        self.in_function = in_function
        self.names = names
        self.strings: dict[str, tuple[str, ...]] = {}

    def read(self, body: list[ast.stmt], optional: bool = False, again: bool = False) -> None:
        """Read statements; ``optional`` where they may fail, ``again`` where another branch may have bound a name."""
        for node in body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node, optional, again)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self._assign(targets[0], node.value, again)
            elif isinstance(node, ast.Try):
                self.read(node.body, optional or catches_absence(node), again)
                for handler in node.handlers:
                    self.read(handler.body, optional, True)
                self.read([*node.orelse, *node.finalbody], optional, True)
            elif isinstance(node, ast.If):
                self.read(node.body, optional, True)
                self.read(node.orelse, optional, True)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.read(node.body if self.in_function else [], optional, again)
            elif not isinstance(node, ast.ClassDef):
                self.read(getattr(node, "body", []), optional, again)

    def _import(self, node: ast.Import | ast.ImportFrom, optional: bool, again: bool) -> None:
        for name, target in imported_names(self.targets.module.package, node):
            if target.module.partition(".")[0] == PACKAGE:
                self._bind(name, (Target(target.module, target.name, optional),), again)

    def _assign(self, target: ast.expr, value: ast.expr, again: bool) -> None:
        if isinstance(target, ast.Name):
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                self.strings[target.id] = (*self.strings.get(target.id, ()), value.value)
                if value.value.startswith(f"{PACKAGE}."):
                    # Texts are kept as modules that the code asks for before it imports them.
                    self._bind(target.id, (Target(value.value, None, optional=True),), True)
                return
            found = self.targets.value(value, self.names)
            if found != NOTHING or target.id in self.names:
                self._bind(target.id, found, again)
        elif isinstance(target, ast.Tuple):
            found = self.targets.value(value, self.names)
            if isinstance(found, Several) and len(found.items) == len(target.elts):
                for element, item in zip(target.elts, found.items, strict=True):
                    if isinstance(element, ast.Name) and item != NOTHING:
                        self._bind(element.id, item, again)

    def _bind(self, name: str, value: Value, again: bool) -> None:
        self.names[name] = _either(self.names.get(name, NOTHING), value) if again else value


def _text(function: Function) -> str:
    return "\n".join(function.module.lines[function.node.lineno - 1 : function.node.end_lineno])


def _texts(node: ast.expr, names: dict[str, Value]) -> Iterator[str]:
    """Yield the module names that the argument of ``import_module`` may be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name):
        value = names.get(node.id, NOTHING)
        yield from (target.module for target in value if target.name is None) if isinstance(value, tuple) else ()


def _member(value: Value, attr: str) -> Value:
    if isinstance(value, Several):
        return NOTHING
    return tuple(replace(t, name=f"{t.name}.{attr}" if t.name else attr) for t in value)


def _optional(value: Value) -> Value:
    return tuple(replace(t, optional=True) for t in value) if isinstance(value, tuple) else value


def _either(left: Value, right: Value) -> Value:
    if isinstance(left, Several) or isinstance(right, Several):
        return left if left != NOTHING else right
    return tuple(dict.fromkeys((*left, *right)))


def catches_absence(node: ast.Try) -> bool:
    """Return whether a ``try`` goes on where what it imports is not there."""
    for handler in node.handlers:
        types = [handler.type] if not isinstance(handler.type, ast.Tuple) else list(handler.type.elts)
        if any(t is None or text_of(t).rpartition(".")[2] in ABSENCE for t in types):
            return True
    return False
