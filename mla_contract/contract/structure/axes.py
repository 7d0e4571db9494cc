"""Named axes: parsing an axis text such as ``num_reqs+1``, binding it to sizes, and showing the binding."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from mla_contract.errors import InvalidContract

ANY_RANK = "..."


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of an annotation: a sum or product of names and constants.

    Attributes:
        text: As written.
        names: The names that occur, in order.
        offset: The constant of the form ``name+offset``; None when the text is of another form.
    """

    text: str
    names: tuple[str, ...]
    offset: int | None

    def size(self, bindings: Mapping[str, int]) -> int | None:
        """Return the size under ``bindings``, or None while a name is unbound."""
        if self.offset is not None and len(self.names) == 1:
            bound = bindings.get(self.names[0])
            return None if bound is None else bound + self.offset
        if any(name not in bindings for name in self.names):
            return None
        return _value(ast.parse(self.text, mode="eval").body, bindings)

    def binding(self, size: int) -> tuple[str, int] | None:
        """Return the (name, value) that makes this axis ``size`` long, where the form allows to solve for it."""
        if self.offset is None or len(self.names) != 1 or size < self.offset:
            return None
        return self.names[0], size - self.offset

    def derivation(self, bindings: Mapping[str, int]) -> str:
        """Return the axis with the value of each name, such as ``num_reqs=4 + 1``."""
        text = self.text
        for name in self.names:
            text = text.replace(name, f"{name}={bindings[name]}") if name in bindings else text
        return text.replace("+", " + ").replace("*", " * ")


@dataclass(frozen=True, slots=True)
class Shape:
    """The axes of one annotation; ``axes`` is None when any rank is allowed."""

    text: str
    axes: tuple[Axis, ...] | None


@cache
def parse_shape(text: str) -> Shape:
    """Return the axes of a jaxtyping shape text.

    A variadic axis (``...`` or ``*name``) makes the whole shape free: the clauses decide it.

    Raises:
        InvalidContract: If the text is not understood.
    """
    parts = text.split()
    if any(part == ANY_RANK or part.startswith("*") for part in parts):
        return Shape(text, None)
    return Shape(text, tuple(_parse_axis(part) for part in parts))


def _parse_axis(text: str) -> Axis:
    """Return one parsed axis."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise InvalidContract(f"axis {text!r} is not an expression") from error
    names = tuple(dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)))
    match tree:
        case ast.Name():
            return Axis(text, names, 0)
        case ast.Constant(value=int()):
            return Axis(text, (), None)
        case ast.BinOp(left=ast.Name(), op=ast.Add(), right=ast.Constant(value=int() as offset)):
            return Axis(text, names, offset)
    _value(tree, dict.fromkeys(names, 1))
    return Axis(text, names, None)


def _value(tree: ast.expr, bindings: Mapping[str, int]) -> int:
    """Return the value of an axis expression whose names are all bound."""
    match tree:
        case ast.Name(id=name):
            return bindings[name]
        case ast.Constant(value=int() as number):
            return number
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left, bindings) + _value(right, bindings)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left, bindings) - _value(right, bindings)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left, bindings) * _value(right, bindings)
    raise InvalidContract(f"axis expression {ast.unparse(tree)!r} uses more than names, integers, +, - and *")
