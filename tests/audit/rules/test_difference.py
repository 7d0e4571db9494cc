"""What two functions have apart is told by statement, whatever their variables are called, and without running them."""

from __future__ import annotations

import ast

import pytest

from mla_contract.audit.drift.difference import MAX_STATEMENTS, MAX_TEXT, Difference, difference
from mla_contract.audit.model.module import FunctionNode

PLAIN = """
def split(lens, decode_threshold=1):
    count = 0
    for n in lens:
        if n > decode_threshold:
            break
        count += 1
    else:
        print("all")
    return count
"""


def function(source: str) -> FunctionNode:
    """Return the first function of a source."""
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def compared(left: str, right: str = PLAIN) -> Difference:
    """Return the difference of two sources of one function each."""
    return difference(function(left), function(right))


@pytest.mark.parametrize(
    ("old", "new", "left", "right"),
    [
        ("n > decode", "n >= decode", "if n >= decode_threshold:", "if n > decode_threshold:"),
        ("count += 1", "count += 2", "count += 2", "count += 1"),
        ("threshold=1", "threshold=2", "(lens, decode_threshold=2)", "(lens, decode_threshold=1)"),
        ("return count", "return decode_threshold", "return decode_threshold", "return count"),
        ("            break\n", "            continue\n", "continue", "break"),
        ("    count = 0\n", "", None, "count = 0"),
        ("    return count", "    lens.sort()\n    return count", "lens.sort()", None),
    ],
)
def test_difference_one_change_is_one_statement(old: str, new: str, left: str | None, right: str | None) -> None:
    """A change shows as the statement that has it, an addition on one side only, and nothing else."""
    found = compared(PLAIN.replace(old, new))
    assert (found.left, found.right) == ((left,) if left else (), (right,) if right else ())


@pytest.mark.parametrize(
    "other",
    [
        PLAIN,
        PLAIN.replace("lens", "sizes").replace("count", "k").replace(" n ", " size ").replace("n >", "size >"),
        PLAIN.replace("def split(lens, ", '@wrapped\ndef cut(lens: "list[int]", ').replace(
            ":\n    count", ":\n    'x'\n    count"
        ),
    ],
)
def test_difference_renamed_or_annotated_twin_has_none(other: str) -> None:
    """Names of local variables, annotations, decorators and docstrings do not count."""
    assert compared(other) == Difference()


def test_difference_renamed_variable_still_shows_the_change() -> None:
    """A renamed copy with one changed statement has that one apart, in its own words."""
    found = compared(PLAIN.replace("count", "k").replace("k += 1", "k += 2"))
    assert (found.left, found.right) == (("k += 2",), ("count += 1",))


def test_difference_two_variables_made_one_is_a_difference() -> None:
    """Two names of one function cannot both stand for one name of the other."""
    two = "def f(a, b):\n    x = a\n    y = b\n    return x + y\n"
    one = "def f(a, b):\n    x = a\n    x = b\n    return x + x\n"
    assert compared(two, one) != Difference()


@pytest.mark.parametrize(
    "statement",
    [
        f"x = {hex(16**5000)}",
        "x = " + "-" * 60 + "1",
        "x = " + " + ".join(["a"] * 2000),
        "match a:\n        case [1, *rest] if rest: pass\n        case _: pass",
        "try: pass\n    except* E as e: pass\n    finally: pass",
        "async def g(*, a=1, **k): yield\n    class A: x = 1",
    ],
)
def test_difference_odd_statement_is_compared(statement: str) -> None:
    """Statements that Python cannot write out, or that have blocks of their own kind, are compared like others."""
    odd = f"def f(a):\n    {statement}\n    return a\n"
    assert compared(odd, odd) == Difference()
    changed = compared(odd, odd.replace("return a", "return [a]"))
    assert (changed.left, changed.right) == (("return a",), ("return [a]",))
    assert compared(odd, "def f(a):\n    return a\n").left != ()


def test_difference_sentence_is_short_and_printable() -> None:
    """The sentence shows a few statements, each cut, and no control character reaches a terminal."""
    found = Difference(("x = '\x1b[2J'", "y" * 500, "a", "b", "c"), ())
    text = found.sentence()
    assert text.startswith("only here: `x = '\\x1b[2J'`, `yyy") and text.endswith("`a` and 2 more")
    assert "y" * (MAX_TEXT - 3) + "...`" in text and text.isprintable()


def test_difference_very_long_function_is_not_compared() -> None:
    """Aligning has a bound, and the sentence says so; a function at the bound is compared."""
    body = "    x = 1\n" * (MAX_STATEMENTS - 1)
    assert compared(f"def f():\n{body}", f"def f():\n{body}") == Difference()
    assert (
        compared(f"def f():\n{body}    x = 1\n").sentence().startswith(f"not compared: {MAX_STATEMENTS + 1} statements")
    )
