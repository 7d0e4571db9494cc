"""What an operation asks of the workspace manager: in its profiling branch, and while it serves a batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from mla_contract.audit.model.index import Function, ModuleIndex, module_name
from mla_contract.audit.model.module import Import, imported_names
from mla_contract.audit.model.nodes import text_of, walk
from mla_contract.audit.policy.allocations import allocation
from mla_contract.audit.policy.flags import leaves
from mla_contract.audit.policy.sizes import Names, Size, constant, item_bytes, size_of

GETTER = "get_simultaneous"
MAX_DEPTH = 4
"""Calls within calls from an operation to the manager; those of vLLM 0.26 and 0.33 reach it in two."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One tensor that is asked for.

    Attributes:
        dims: Its sizes, empty where the source does not show them.
        bound: A number of elements that it certainly does not exceed.
        item_bytes: Bytes of an element, None if unknown.
        text: The resolved expression.
    """

    dims: tuple[Size, ...]
    bound: Size
    item_bytes: int | None
    text: str

    @property
    def elements(self) -> Size:
        """Return the number of elements."""
        total = constant(1)
        for dim in self.dims:
            total = total.times(dim)
        return total


@dataclass(frozen=True, slots=True)
class Request:
    """One call of the manager, or one allocation outside it.

    Attributes:
        function: Function that the call stands in.
        node: The call.
        specs: What it asks for.
        tests: The tests around it, from the operation down, as written.
        managed: Whether the manager serves it.
    """

    function: Function
    node: ast.Call
    specs: tuple[Spec, ...]
    tests: tuple[str, ...]
    managed: bool


@dataclass(frozen=True, slots=True)
class WorkspaceOperation:
    """A function with a profiling branch: what it reserves there, and what it asks for afterwards."""

    function: Function
    branch: ast.If
    reserved: tuple[Request, ...]
    used: tuple[Request, ...]


def find_operations(index: ModuleIndex) -> Iterator[WorkspaceOperation]:
    """Yield the operations that return early without metadata and reserve workspace before they do."""
    for name in sorted(_modules(index)):
        module = index.get(name)
        if module is None:
            continue
        for function in index.functions(module):
            for position, statement in enumerate(function.node.body):
                if isinstance(statement, ast.If) and is_profiling(statement):
                    before = function.node.body[:position]
                    reserved = _collect(index, function, before, statement.body)
                    used = _collect(index, function, before, function.node.body[position + 1 :])
                    if any(r.managed for r in reserved) or any(r.managed for r in used):
                        yield WorkspaceOperation(function, statement, tuple(reserved), tuple(used))
                    break


def is_profiling(node: ast.If) -> bool:
    """Return whether a statement returns early when the step has no metadata."""
    test = node.test
    if not leaves(node.body) or not isinstance(node.body[-1], ast.Return):
        return False
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and isinstance(test.operand, ast.Call):
        call = test.operand
        return text_of(call.func) == "isinstance" and "metadata" in text_of(call.args[0]) and _is_dict(call)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is) and text_of(test.comparators[0]) == "None":
        return "metadata" in text_of(test.left)
    return False


def _is_dict(call: ast.Call) -> bool:
    return len(call.args) == 2 and text_of(call.args[1]) == "dict"


def _modules(index: ModuleIndex) -> Iterator[str]:
    for path, file in index.tree.files.items():
        data = file.data
        reserves = b"workspace" in data or GETTER.encode() in data
        profiles = b"metadata, dict)" in data or b"metadata is None" in data
        if path.endswith(".py") and reserves and profiles and (b"Indexer" in data or b"MLA" in data):
            yield module_name(path)


def _collect(index: ModuleIndex, function: Function, before: list[ast.stmt], body: list[ast.stmt]) -> list[Request]:
    found: list[Request] = []
    names = Names({}, [*before, *body])
    _Collector(index, found, {id(function.node)}).body(function, body, names, ())
    return found


class _Collector:
    """Walks statements and the functions of the tree that they call, and collects requests."""

    def __init__(self, index: ModuleIndex, found: list[Request], seen: set[int]) -> None:
        self.index = index
        self.found = found
        self.seen = seen
        self.imports: dict[int, dict[str, Import]] = {}

    def body(
        self, function: Function, body: list[ast.stmt], names: Names, tests: tuple[str, ...], depth: int = 0
    ) -> None:
        """Collect from statements of a function."""
        for statement in body:
            if isinstance(statement, ast.If):
                self._expression(function, statement.test, names, tests, depth)
                test = text_of(names.resolve(statement.test))
                self.body(function, statement.body, names, (*tests, test), depth)
                self.body(function, statement.orelse, names, (*tests, f"not ({test})"), depth)
                continue
            blocks = [b for n in ("body", "orelse", "finalbody") if isinstance(b := getattr(statement, n, None), list)]
            blocks += [handler.body for handler in getattr(statement, "handlers", ())]
            for block in blocks:
                self.body(function, block, names, tests, depth)
            for field, value in ast.iter_fields(statement):
                if field not in ("body", "orelse", "finalbody", "handlers"):
                    for part in value if isinstance(value, list) else [value]:
                        if isinstance(part, ast.AST):
                            self._expression(function, part, names, tests, depth)

    def _expression(self, function: Function, root: ast.AST, names: Names, tests: tuple[str, ...], depth: int) -> None:
        for node in walk(root):
            if not isinstance(node, ast.Call):
                continue
            allocated = allocation(node)
            if isinstance(node.func, ast.Attribute) and node.func.attr == GETTER:
                specs = tuple(s for a in node.args for s in self._specs(function, a, names))
                self.found.append(Request(function, node, specs, tests, True))
            elif allocated is not None and not allocated.name.endswith("_like"):
                spec = _spec([names.resolve(dim) for dim in allocated.dims], allocated.dtype, text_of(node))
                self.found.append(Request(function, node, (spec,), tests, False))
            elif depth < MAX_DEPTH:
                self._enter(function, node, names, tests, depth)

    def _enter(self, function: Function, node: ast.Call, names: Names, tests: tuple[str, ...], depth: int) -> None:
        callee = self._callee(function, node.func)
        if callee is None or id(callee.node) in self.seen or any(isinstance(a, ast.Starred) for a in node.args):
            return
        if GETTER.encode() not in self.index.tree.files[callee.module.path].data:
            return
        self.seen.add(id(callee.node))
        spec = callee.node.args
        parameters = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        if callee.owner is not None and parameters and parameters[0] in ("self", "cls"):
            parameters = parameters[1:]
        given = {p: names.resolve(a) for p, a in zip(parameters, node.args, strict=False)}
        given |= {k.arg: names.resolve(k.value) for k in node.keywords if k.arg is not None}
        self.body(callee, callee.node.body, Names(given, callee.node.body), tests, depth + 1)

    def _callee(self, function: Function, node: ast.expr) -> Function | None:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            found = function.owner.find_method(node.attr) if function.owner is not None else None
            return Function(found[0].module, found[1], found[0]) if found else None
        if not isinstance(node, ast.Name):
            return None
        symbol = self.index.resolve(function.module, node.id)
        if symbol is None:
            key = id(function.node)
            if key not in self.imports:
                self.imports[key] = _local_imports(function)
            target = self.imports[key].get(node.id)
            symbol = self.index.resolve_import(target) if target is not None else None
        return symbol if isinstance(symbol, Function) else None

    def _specs(self, function: Function, node: ast.expr, names: Names) -> Iterator[Spec]:
        """Yield the tensors that an argument of the manager asks for."""
        if isinstance(node, ast.Starred):
            yield from self._listed(function, node.value, names)
            return
        resolved = names.resolve(node)
        text = text_of(resolved)
        if isinstance(resolved, ast.Tuple) and len(resolved.elts) == 2 and isinstance(resolved.elts[0], ast.Tuple):
            yield _spec(resolved.elts[0].elts, resolved.elts[1], text)
        else:
            yield _opaque(text)

    def _listed(self, function: Function, node: ast.expr, names: Names) -> Iterator[Spec]:
        """Yield what is put into a list that a call unpacks: its display, and what is appended to it."""
        if not isinstance(node, ast.Name):
            yield _opaque(text_of(names.resolve(node)))
            return
        for child in walk(function.node):
            value: ast.expr | None = None
            if isinstance(child, ast.Assign | ast.AnnAssign):
                target = child.targets[0] if isinstance(child, ast.Assign) else child.target
                value = child.value if isinstance(target, ast.Name) and target.id == node.id else None
            elif _adds_to(child, node.id, "append"):
                yield from self._specs(function, child.args[0], names)
            elif _adds_to(child, node.id, "extend"):
                value = child.args[0]
            if isinstance(value, ast.List | ast.Tuple):
                for element in value.elts:
                    yield from self._specs(function, element, names)
            elif value is not None:
                yield _opaque(text_of(names.resolve(value)))


def _adds_to(node: ast.AST, name: str, method: str) -> TypeGuard[ast.Call]:
    """Return whether a node is a call of a method of a list, by name, with one argument."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or len(node.args) != 1:
        return False
    return node.func.attr == method and isinstance(node.func.value, ast.Name) and node.func.value.id == name


def _spec(dims: list[ast.expr], dtype: ast.expr | None, text: str) -> Spec:
    bound = constant(1)
    for dim in dims:
        bound = bound.times(size_of(dim, at_most=True))
    return Spec(tuple(size_of(dim) for dim in dims), bound, item_bytes(dtype), text)


def _opaque(text: str) -> Spec:
    return Spec((), constant(0), None, text)


def _local_imports(function: Function) -> dict[str, Import]:
    found: dict[str, Import] = {}
    for node in walk(function.node):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update(imported_names(function.module.package, node))
    return found
