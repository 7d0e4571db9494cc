"""The calls that a function makes into aiter, with the arguments that each passes and the tests it stands behind."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from mla_contract.audit.aiter.signatures import Arguments
from mla_contract.audit.aiter.targets import Target, Targets
from mla_contract.audit.model.index import Function
from mla_contract.audit.model.module import FunctionNode
from mla_contract.audit.model.nodes import literal_text, text_of


@dataclass(frozen=True, slots=True)
class CallSite:
    """One call into aiter.

    Attributes:
        function: Function of the tree that calls.
        node: The call.
        targets: What is called, in the order in which the code tries alternatives.
        arguments: What is passed.
        probes: Parameter names that the code looks for in a signature before it gets here.
    """

    function: Function
    node: ast.Call
    targets: tuple[Target, ...]
    arguments: Arguments
    probes: frozenset[str]


def call_sites(targets: Targets, function: Function) -> Iterator[CallSite]:
    """Yield the calls into aiter that a function makes, nested functions included."""
    if not targets.may_call(function):
        return
    names = targets.scope(function.node)
    mappings = _Mappings(targets, function.node)
    for node, tests in _calls(function.node.body, ()):
        called = targets.value(node.func, names)
        if isinstance(called, tuple) and called and all(t.name and _is_callable_name(t.name) for t in called):
            probes = frozenset(p for target in called for p in target.probes)
            for test in tests:
                probes |= targets.probes(test)
            yield CallSite(function, node, called, mappings.arguments(node), probes)


def _is_callable_name(name: str) -> bool:
    return not name.rpartition(".")[2].startswith("__")


def _calls(body: list[ast.stmt], tests: tuple[ast.expr, ...]) -> Iterator[tuple[ast.Call, tuple[ast.expr, ...]]]:
    """Yield every call below statements, with the tests around it."""
    for statement in body:
        inner = tests
        if isinstance(statement, ast.If | ast.While):
            yield from _in_expression(statement.test, tests)
            inner = (*tests, statement.test)
        blocks = [b for n in ("body", "orelse", "finalbody") if isinstance(b := getattr(statement, n, None), list)]
        blocks += [handler.body for handler in getattr(statement, "handlers", ())]
        for block in blocks:
            yield from _calls(block, inner)
        if not isinstance(statement, ast.If | ast.While):
            for field, value in ast.iter_fields(statement):
                if field not in ("body", "orelse", "finalbody", "handlers"):
                    for part in value if isinstance(value, list) else [value]:
                        if isinstance(part, ast.AST):
                            yield from _in_expression(part, inner)


def _in_expression(node: ast.AST, tests: tuple[ast.expr, ...]) -> Iterator[tuple[ast.Call, tuple[ast.expr, ...]]]:
    if isinstance(node, ast.IfExp):
        yield from _in_expression(node.test, tests)
        for part in (node.body, node.orelse):
            yield from _in_expression(part, (*tests, node.test))
        return
    if isinstance(node, ast.Call):
        yield node, tests
    for child in ast.iter_child_nodes(node):
        yield from _in_expression(child, tests)


class _Mappings:
    """The keyword mappings that a function builds and then unpacks in calls."""

    def __init__(self, targets: Targets, function: FunctionNode) -> None:
        self.targets = targets
        self.sure: dict[str, dict[str, ast.expr]] = {}
        self.maybe: dict[str, dict[str, str]] = {}
        self.open: set[str] = set()
        self.probed: dict[str, set[str]] = {}
        self._read(function.body, None)

    def arguments(self, node: ast.Call) -> Arguments:
        """Return what a call passes."""
        found = Arguments()
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                found.open_positional = True
                break
            found.positional.append(argument)
        for keyword in node.keywords:
            if keyword.arg is not None:
                found.keywords[keyword.arg] = keyword.value
            else:
                self._unpack(keyword.value, found)
        return found

    def _unpack(self, value: ast.expr, found: Arguments) -> None:
        shown = _shown(value)
        if shown is not None:
            found.keywords.update(shown)
        elif isinstance(value, ast.Name) and value.id in self.sure:
            found.keywords.update(self.sure[value.id])
            known = self.maybe.get(value.id, {})
            found.maybe.update({n: test for n, test in known.items() if n not in found.keywords})
            found.open_keywords |= value.id in self.open
        else:
            found.open_keywords = True

    def _read(self, body: list[ast.stmt], test: ast.expr | None) -> None:
        for node in body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                self._assign(target, node.value, test)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                self._method(node.value, test)
            if isinstance(node, ast.If):
                self._read(node.body, node.test)
                self._read(node.orelse, ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test))
            else:
                for name in ("body", "orelse", "finalbody"):
                    block = getattr(node, name, None)
                    if isinstance(block, list):
                        self._read(block, test)

    def _assign(self, target: ast.expr, value: ast.expr, test: ast.expr | None) -> None:
        shown = _shown(value)
        if isinstance(target, ast.Name) and shown is not None:
            if test is None or target.id not in self.sure:
                self.sure[target.id] = dict(shown) if test is None else {}
            for name in shown if test is not None else ():
                self._add(target.id, name, test)
        elif isinstance(target, ast.Name) and target.id in self.sure:
            self.open.add(target.id)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and target.value.id in self.sure:
            key = literal_text(target.slice)
            if key is None:
                self.open.add(target.value.id)
            elif test is None:
                self.sure[target.value.id][key] = value
            else:
                self._add(target.value.id, key, test)

    def _method(self, node: ast.Call, test: ast.expr | None) -> None:
        func = node.func
        if not (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in self.sure):
            return
        name = func.value.id
        shown = _shown(node.args[0]) if node.args else {}
        if func.attr != "update" or shown is None or any(k.arg is None for k in node.keywords):
            self.open.add(name)
            return
        for key, value in {**shown, **{str(k.arg): k.value for k in node.keywords}}.items():
            if test is None:
                self.sure[name][key] = value
            else:
                self._add(name, key, test)

    def _add(self, mapping: str, key: str, test: ast.expr | None) -> None:
        """Note a key that is there under a test, unless the test asks the signature for it."""
        if test is not None and key not in self.targets.probes(test):
            self.maybe.setdefault(mapping, {})[key] = text_of(test)


def _shown(node: ast.expr) -> dict[str, ast.expr] | None:
    """Return the items of a mapping display with constant keys, or of ``dict(...)``; None for anything else."""
    if isinstance(node, ast.Dict) and all(isinstance(k, ast.Constant) for k in node.keys):
        return {str(k.value): v for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)}
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict") or node.args:
        return None
    return None if any(k.arg is None for k in node.keywords) else {str(k.arg): k.value for k in node.keywords}
