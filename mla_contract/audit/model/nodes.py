"""Walking a syntax tree: what is below a node is listed once, because many rules ask for the same functions."""

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
