"""Walking a syntax tree, where many rules ask for the same functions, and writing parts of one out as text."""

from __future__ import annotations

import ast
from functools import lru_cache


@lru_cache(maxsize=8192)
def walk(root: ast.AST) -> tuple[ast.AST, ...]:
    """Return a node and everything below it, level by level, as ``ast.walk`` does; for trees that are not changed."""
    found = [root]
    for node in found:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [item for item in value if isinstance(item, ast.AST)]
    return tuple(found)


def text_of(node: ast.AST) -> str:
    """Return a node as source text; one that Python cannot write out is named by its kind and its place.

    Python refuses integers of more than 4,300 digits and what is nested too deeply. The place is part of the name, for
    two such nodes must not compare as equal.
    """
    try:
        return ast.unparse(node)
    except (ValueError, RecursionError):
        return f"<{type(node).__name__} at {getattr(node, 'lineno', 0)}:{getattr(node, 'col_offset', 0)}>"


def literal_text(node: ast.AST | None) -> str | None:
    """Return the text that a string literal stands for; None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
