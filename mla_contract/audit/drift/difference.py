"""The statements that one of two functions has and the other has not, told from their sources alone."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from mla_contract.audit.drift.functions import local_names, tokens
from mla_contract.audit.model.module import FunctionNode
from mla_contract.audit.model.nodes import text_of

MAX_STATEMENTS = 200
"""Length from which functions are not compared: aligning them takes cubic time at worst, and no planner is so long."""

MAX_SHOWN = 3
MAX_TEXT = 100

_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
_LABELS = {"orelse": "else:", "finalbody": "finally:"}

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """What two functions do not have in common.

    Attributes:
        left: Statements of the first function only, as text.
        right: Statements of the second only.
        reason: Why the two were not compared, or None.
    """

    left: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    reason: str | None = None

    def sentence(self) -> str:
        """Return the difference as the end of a sentence about the first function."""
        if self.reason is not None:
            return f"not compared: {self.reason}"
        parts = [
            f"{where}: {_listed(statements)}"
            for where, statements in (("only here", self.left), ("only in the shared one", self.right))
            if statements
        ]
        return "; ".join(parts) or "no statement differs by itself"


@dataclass(frozen=True, slots=True)
class _Statement:
    """One statement without those nested in it.

    Attributes:
        text: How it is written.
        tokens: Its normal form with every name as written.
    """

    text: str
    tokens: Key

    def key(self, names: dict[str, str]) -> Key:
        """Return the normal form with some names replaced."""
        return tuple(names.get(token, token) for token in self.tokens)


def difference(left: FunctionNode, right: FunctionNode) -> Difference:
    """Return the statements that only one of two functions has; a renamed local variable is not a difference.

    Args:
        left: A function.
        right: Another.
    """
    mine, theirs = list(_statements(left)), list(_statements(right))
    longest = max(len(mine), len(theirs))
    if longest > MAX_STATEMENTS:
        return Difference(reason=f"{longest} statements are more than {MAX_STATEMENTS}")
    renamed = _renamed(mine, theirs, set(local_names(left)), set(local_names(right)))
    matcher = _matcher([s.key(renamed) for s in mine], [s.tokens for s in theirs])
    only: tuple[list[str], list[str]] = ([], [])
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal":
            only[0].extend(s.text for s in mine[i:j])
            only[1].extend(s.text for s in theirs[k:m])
    return Difference(tuple(only[0]), tuple(only[1]))


def _renamed(left: list[_Statement], right: list[_Statement], own: set[str], others: set[str]) -> dict[str, str]:
    """Return which local name of the second function each of the first stands for.

    Statements are aligned with all local names being one, and the aligned ones vote, because a single wrong pair must
    not decide. Each name is given away once: two variables that became one are a difference.
    """
    blurred = ({name: "" for name in own}, {name: "" for name in others})
    matcher = _matcher([s.key(blurred[0]) for s in left], [s.key(blurred[1]) for s in right])
    votes: Counter[tuple[str, str]] = Counter()
    for block in matcher.get_matching_blocks():
        for offset in range(block.size):
            pairs = zip(left[block.a + offset].tokens, right[block.b + offset].tokens, strict=True)
            votes.update((a, b) for a, b in pairs if a in own and b in others)
    renamed: dict[str, str] = {}
    for (a, b), _ in votes.most_common():
        if a not in renamed and b not in renamed.values():
            renamed[a] = b
    return renamed


def _matcher(left: Sequence[Key], right: Sequence[Key]) -> SequenceMatcher[Key]:
    return SequenceMatcher(None, left, right, autojunk=False)


def _statements(function: FunctionNode) -> Iterator[_Statement]:
    """Yield the parameters of a function as if they were a statement, and its statements in their order."""
    plain = _without_annotations(function.args)
    yield _Statement(f"({text_of(plain)})", tuple(tokens(plain)))
    yield from _flat(function.body)


def _flat(body: Sequence[ast.AST]) -> Iterator[_Statement]:
    pending: list[ast.AST | str] = list(reversed(body))
    while pending:
        node = pending.pop()
        if isinstance(node, str):
            yield _Statement(node, (node,))
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            continue
        header = _header(node)
        yield _Statement(_one_line(text_of(header)), tuple(tokens(header)))
        for name in reversed(_BLOCKS):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                pending += reversed(block)
                pending += [_LABELS[name]] if name in _LABELS else []


def _header(node: ast.AST) -> ast.AST:
    """Return a statement without the statements, handlers and cases in it."""
    if not any(getattr(node, name, None) for name in _BLOCKS):
        return node
    fields: dict[str, Any] = {
        name: [] if name in _BLOCKS or name == "decorator_list" else value for name, value in ast.iter_fields(node)
    }
    return ast.copy_location(type(node)(**fields), node) if hasattr(node, "lineno") else type(node)(**fields)


def _without_annotations(spec: ast.arguments) -> ast.arguments:
    def plain(parameter: ast.arg) -> ast.arg:
        return ast.arg(parameter.arg)

    return ast.arguments(
        posonlyargs=list(map(plain, spec.posonlyargs)),
        args=list(map(plain, spec.args)),
        vararg=plain(spec.vararg) if spec.vararg else None,
        kwonlyargs=list(map(plain, spec.kwonlyargs)),
        kw_defaults=spec.kw_defaults,
        kwarg=plain(spec.kwarg) if spec.kwarg else None,
        defaults=spec.defaults,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _listed(statements: Sequence[str]) -> str:
    shown = ", ".join(f"`{_printable(text)}`" for text in statements[:MAX_SHOWN])
    rest = len(statements) - MAX_SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown


def _printable(text: str) -> str:
    """Return a text, cut to its length, that can do nothing to a terminal that shows it."""
    cut = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)
