"""Taking a pure function out of a foreign tree: its source and that of its helpers, or the reason why not.

Foreign code is data. It is run only where every name and attribute that it uses is known to be harmless.
"""

from __future__ import annotations

import ast
import copy

from mla_contract.audit.drift.trial.words import ATTRIBUTES, BUILTINS, MODULES
from mla_contract.audit.model.index import Assigned, Function
from mla_contract.audit.model.module import FunctionNode

_NODES = (
    ast.FunctionDef, ast.Lambda, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AugAssign, ast.For, ast.While,
    ast.If, ast.Assert, ast.Raise, ast.Expr, ast.Pass, ast.Break, ast.Continue, ast.expr, ast.expr_context,
    ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.comprehension, ast.keyword,
)  # fmt: skip
_BANNED = (ast.Await, ast.Yield, ast.YieldFrom)
_MAX_HELPERS = 12


class NotExtractableError(Exception):
    """A function that is not run, with the reason."""


def extract(function: Function) -> str:
    """Return the source of a function and its helpers, annotations and decorators stripped.

    Raises:
        NotExtractableError: It uses something that is not known to be harmless.
    """
    parts: dict[str, str] = {}
    _extract(function, parts)
    return "\n\n".join(reversed(parts.values()))


def _extract(function: Function, parts: dict[str, str]) -> None:
    if len(parts) >= _MAX_HELPERS:
        raise NotExtractableError(f"it needs more than {_MAX_HELPERS} other functions")
    node = _stripped(function.node)
    name = function.node.name
    if not isinstance(node, ast.FunctionDef):
        raise NotExtractableError(f"{name} is asynchronous")
    local = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    local |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    local |= {n.name for n in ast.walk(node) if isinstance(n, ast.FunctionDef)}
    parts[name] = ast.unparse(node)
    for child in ast.walk(node):
        if not isinstance(child, _NODES) or isinstance(child, _BANNED):
            raise NotExtractableError(f"{name} has a {type(child).__name__} statement")
        if isinstance(child, ast.Attribute) and child.attr not in ATTRIBUTES:
            raise NotExtractableError(f"{name} uses .{child.attr}")
        if isinstance(child, ast.Name) and child.id not in local and child.id not in BUILTINS | MODULES:
            _global(function, child.id, parts)


def _global(function: Function, name: str, parts: dict[str, str]) -> None:
    index = function.module.index
    symbol = index.resolve(function.module, name) if index is not None else None
    if name in parts:
        return
    if isinstance(symbol, Function):
        if symbol.node.name != name:
            raise NotExtractableError(f"{function.node.name} calls {symbol.node.name} under another name")
        _extract(symbol, parts)
    elif isinstance(symbol, Assigned) and isinstance(symbol.value, ast.Constant):
        parts[name] = f"{name} = {symbol.value.value!r}"
    else:
        raise NotExtractableError(f"{function.node.name} uses {name}")


def _stripped(node: FunctionNode) -> FunctionNode:
    clean = copy.deepcopy(node)
    for child in ast.walk(clean):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            child.decorator_list, child.returns = [], None
            child.body = [s for b in child.body if (s := _plain(b)) is not None] or [ast.Pass()]
        elif isinstance(child, ast.arg):
            child.annotation = None
        else:
            for name in ("body", "orelse"):
                block = getattr(child, name, None)
                if isinstance(block, list):
                    setattr(child, name, [s for b in block if (s := _plain(b)) is not None])
                    if name == "body" and not getattr(child, name):
                        child.body = [ast.Pass()]  # type: ignore[attr-defined]
    return ast.fix_missing_locations(clean)


def _plain(statement: ast.stmt) -> ast.stmt | None:
    """Return a statement without annotation; None for one that only annotates."""
    if isinstance(statement, ast.AnnAssign):
        return None if statement.value is None else ast.Assign([statement.target], statement.value)
    return statement
