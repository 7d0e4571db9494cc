"""Tensor allocations in source: which calls allocate, with which shape, of which element type."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from mla_contract.audit.model.nodes import walk

FREE = frozenset({"empty", "zeros", "ones", "full", "rand", "randn"})
NEW = frozenset({"new_empty", "new_zeros", "new_ones", "new_full"})
LIKE = frozenset({"empty_like", "zeros_like", "ones_like", "full_like"})


@dataclass(frozen=True, slots=True)
class Allocation:
    """A call that allocates a tensor.

    Attributes:
        node: The call.
        name: Name of the function, such as ``torch.empty``.
        dims: Its sizes; for a ``_like`` function the tensor that it copies the size of.
        dtype: The element type as written, or None.
    """

    node: ast.Call
    name: str
    dims: tuple[ast.expr, ...]
    dtype: ast.expr | None

    @property
    def is_constant(self) -> bool:
        """Return whether all sizes are literals, or one of them is zero."""
        literals = [dim.value for dim in self.dims if isinstance(dim, ast.Constant)]
        return 0 in literals or len(literals) == len(self.dims)


def allocation(node: ast.AST) -> Allocation | None:
    """Return the allocation that a node is, or None."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    name = node.func.attr
    is_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
    if not (name in NEW or (is_torch and name in FREE | LIKE)):
        return None
    dtype = next((k.value for k in node.keywords if k.arg == "dtype"), None)
    sizes = [k.value for k in node.keywords if k.arg == "size"] or list(node.args)
    if name in ("full", "new_full") or name in LIKE:
        sizes = sizes[:1]
    dims = tuple(_flat(sizes))
    return Allocation(node, f"torch.{name}" if is_torch else name, dims, dtype) if dims else None


def mentions(node: ast.AST, names: Iterable[str]) -> bool:
    """Return whether an expression mentions one of the names."""
    wanted = frozenset(names)
    return any(isinstance(child, ast.Name) and child.id in wanted for child in walk(node))


def _flat(sizes: list[ast.expr]) -> list[ast.expr]:
    found: list[ast.expr] = []
    for size in sizes:
        if isinstance(size, ast.Tuple | ast.List):
            found += _flat(list(size.elts))
        elif isinstance(size, ast.Starred):
            found.append(size.value)
        else:
            found.append(size)
    return found
