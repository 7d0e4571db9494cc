"""Sizes as polynomials over what the source names, so that two of them can be compared where that is provable."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from mla_contract.audit.model.nodes import text_of, walk

ITEM_BYTES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int16": 2,
    "uint8": 1,
    "int8": 1,
    "bool": 1,
}
MAX_NUMBER = 2**63
"""No tensor has as many elements; numbers of thousands of digits cannot even be written out."""

MAX_DEPTH = 12
"""Names within names that are replaced; a chain of assignments that is longer belongs to a loop."""

MAX_NODES = 80
"""Size from which an expression is left as it is: replacing names doubles it at each level, and nobody reads it."""


@dataclass(frozen=True, slots=True)
class Size:
    """A sum of products: each product of named positive quantities with its factor."""

    terms: tuple[tuple[tuple[str, ...], Fraction], ...]

    def times(self, other: Size) -> Size:
        """Return the product."""
        found: dict[tuple[str, ...], Fraction] = {}
        for left, a in self.terms:
            for right, b in other.terms:
                key = tuple(sorted((*left, *right)))
                found[key] = found.get(key, Fraction(0)) + a * b
        return _size(found)

    def plus(self, other: Size, sign: int = 1) -> Size:
        """Return the sum, or the difference for a sign of -1."""
        found = dict(self.terms)
        for key, factor in other.terms:
            found[key] = found.get(key, Fraction(0)) + sign * factor
        return _size(found)

    def exceeds(self, other: Size) -> bool:
        """Return whether this is certainly larger, whatever the quantities, which are at least one each."""
        rest = self.plus(other, -1).terms
        return bool(rest) and all(factor > 0 for _, factor in rest)

    @property
    def atoms(self) -> frozenset[str]:
        """Return the named quantities."""
        return frozenset(atom for key, _ in self.terms for atom in key)


def constant(value: int | Fraction) -> Size:
    """Return the size that is a number."""
    return _size({(): Fraction(value)})


def quantity(name: str) -> Size:
    """Return the size that is one named quantity."""
    return _size({(name,): Fraction(1)})


def size_of(node: ast.expr, *, at_most: bool = False) -> Size:
    """Return an integer expression, its local names resolved, as a size; anything but a sum or a product is a quantity.

    Args:
        node: The expression.
        at_most: Whether an upper bound will do: a division that rounds down then counts as an exact one.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < MAX_NUMBER:
        return constant(int(node.value))
    if isinstance(node, ast.BinOp):
        left, right = size_of(node.left, at_most=at_most), size_of(node.right, at_most=at_most)
        if isinstance(node.op, ast.Mult):
            return left.times(right)
        if isinstance(node.op, ast.Add):
            return left.plus(right)
        divisor = node.right.value if isinstance(node.right, ast.Constant) else None
        if isinstance(node.op, ast.FloorDiv) and at_most and isinstance(divisor, int) and divisor > 0:
            return left.times(constant(Fraction(1, divisor)))
    return quantity(text_of(node))


def item_bytes(node: ast.expr | None) -> int | None:
    """Return the bytes of an element type as written, None where it does not say; every fp8 type has one."""
    name = text_of(node).rpartition(".")[2].rstrip("()").lower() if node is not None else "float32"
    return 1 if "fp8" in name or "float8" in name else ITEM_BYTES.get(name)


class Names:
    """What the local names of a function stand for, in terms of the names of the operation that leads to it."""

    def __init__(self, parameters: Mapping[str, ast.expr], body: list[ast.stmt]) -> None:
        """Read the assignments of a body.

        Args:
            parameters: Parameters with the arguments that they get, resolved where the call stands.
            body: Statements; a name that two of them set to different things stands for itself.
        """
        self._given = dict(parameters)
        self._local: dict[str, ast.expr] = {}
        self._several: set[str] = set()
        for statement in body:
            for node in walk(statement):
                if isinstance(node, ast.Assign) and len(node.targets) == 1:
                    self._assign(node.targets[0], node.value)
                elif isinstance(node, ast.AnnAssign) and node.value is not None:
                    self._assign(node.target, node.value)
                elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                    self._several.add(node.target.id)

    def resolve(self, node: ast.expr) -> ast.expr:
        """Return an expression with local names replaced by what they stand for, as far as it stays short."""
        return self._resolve(node, frozenset())

    def _resolve(self, node: ast.expr, seen: frozenset[str]) -> ast.expr:
        def replacement(name: ast.Name) -> ast.expr:
            if name.id in self._several or name.id in seen or len(seen) > MAX_DEPTH:
                return name
            if name.id in self._local:
                found = self._resolve(self._local[name.id], seen | {name.id})
                return found if _nodes(found) <= MAX_NODES else name
            return self._given.get(name.id, name)

        return _rebuilt(node, replacement)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            known = self._local.get(target.id, self._given.get(target.id))
            if _uses(value, target.id) or (known is not None and text_of(known) != text_of(value)):
                self._several.add(target.id)
            self._local.setdefault(target.id, value)
        elif isinstance(target, ast.Tuple) and not any(isinstance(e, ast.Starred) for e in target.elts):
            for position, element in enumerate(target.elts):
                if isinstance(element, ast.Name):
                    self._assign(element, _item(value, position))


def _rebuilt(node: ast.expr, replacement: Callable[[ast.Name], ast.expr]) -> ast.expr:
    """Return an expression with its names replaced, and constant items of displays and shapes picked out."""
    if isinstance(node, ast.Name):
        return replacement(node)
    parts: dict[str, object] = {}
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.expr):
            parts[field] = _rebuilt(value, replacement)
        elif isinstance(value, list):
            parts[field] = [_rebuilt_item(item, replacement) for item in value]
        else:
            parts[field] = value
    base, index = parts.get("value"), parts.get("slice")
    if isinstance(base, ast.Tuple) and isinstance(index, ast.Constant) and isinstance(index.value, int):
        return base.elts[index.value] if -len(base.elts) <= index.value < len(base.elts) else node
    kind: Callable[..., ast.expr] = type(node)
    return kind(**parts)


def _rebuilt_item(value: object, replacement: Callable[[ast.Name], ast.expr]) -> object:
    if isinstance(value, ast.expr):
        return _rebuilt(value, replacement)
    if isinstance(value, ast.keyword):
        return ast.keyword(value.arg, _rebuilt(value.value, replacement))
    return value


def _nodes(node: ast.AST) -> int:
    return sum(1 for _ in walk(node))


def _item(value: ast.expr, position: int) -> ast.expr:
    """Return the expression of one item of a tuple; of ``x.shape[:2]`` that is ``x.shape[i]``."""
    if isinstance(value, ast.Tuple) and position < len(value.elts):
        return value.elts[position]
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice) and value.slice.lower is None:
        value = value.value
    return ast.Subscript(value, ast.Constant(position), ast.Load())


def _uses(node: ast.expr, name: str) -> bool:
    return any(isinstance(child, ast.Name) and child.id == name for child in walk(node))


def _size(terms: dict[tuple[str, ...], Fraction]) -> Size:
    return Size(tuple(sorted((key, factor) for key, factor in terms.items() if factor)))
