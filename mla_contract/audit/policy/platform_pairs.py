"""Functions that stand for one another on different platforms, and the exits by which one of them saves its work."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from mla_contract.audit.model.index import Function, ModuleIndex, module_name
from mla_contract.audit.model.nodes import literal_text, walk
from mla_contract.audit.policy.flags import leaves, operands

MIN_NAMES = 2
"""A module that names fewer of the functions cannot dispatch between two of them."""


def platform_pairs(index: ModuleIndex, functions: Iterable[Function]) -> frozenset[tuple[str, str]]:
    """Return the pairs of functions that two methods of one class dispatch to, by qualified names, in both orders.

    A layer with one ``forward_<platform>`` method a platform is the model: each method names another function.
    """
    by_name: dict[str, set[str]] = {}
    for function in functions:
        if function.owner is not None:
            continue
        by_name.setdefault(function.node.name, set()).add(function.qualname)
    pairs: set[tuple[str, str]] = set()
    words = tuple(name.encode() for name in by_name)
    for path in sorted(index.parsed_paths()):
        module = index.get(module_name(path))
        data = index.tree.files[path].data
        if module is None or sum(word in data for word in words) < MIN_NAMES:
            continue
        for cls in index.classes(module):
            named = [_names(method) & by_name.keys() for method in cls.methods.values()]
            for position, mine in enumerate(named):
                for theirs in named[position + 1 :]:
                    for a, b in ((a, b) for a in mine - theirs for b in theirs - mine):
                        pairs |= {(x, y) for x in by_name[a] for y in by_name[b]}
                        pairs |= {(y, x) for x in by_name[a] for y in by_name[b]}
    return frozenset(pairs)


def early_exits(function: Function, flags: frozenset[str]) -> Iterator[tuple[str, ast.If]]:
    """Yield the flags by which a function returns before the rest of its work, each with the test."""
    for node in walk(function.node):
        if isinstance(node, ast.If) and leaves(node.body) and isinstance(node.body[-1], ast.Return):
            for operand in operands(node.test):
                flag = _flag(operand)
                if flag in flags:
                    yield flag, node


def mentions_attribute(function: Function, name: str) -> bool:
    """Return whether a function reads an attribute of a name anywhere, directly or through ``getattr``."""
    return any(_flag(node) == name for node in walk(function.node) if isinstance(node, ast.expr))


def _flag(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and len(node.args) > 1
    ):
        return literal_text(node.args[1]) or ""
    return ""


def _names(node: ast.AST) -> set[str]:
    found: set[str] = set()
    for child in walk(node):
        if isinstance(child, ast.Attribute):
            found.add(child.attr)
        elif isinstance(child, ast.Name):
            found.add(child.id)
    return found
