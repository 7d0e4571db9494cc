"""Hashes of planners, their likeness, and what the shipped profiles know of them."""

from __future__ import annotations

import ast

import pytest

from mla_contract.audit.drift.functions import function_hash, likeness, shared_functions, shingles
from mla_contract.audit.drift.history import last_release_with, releases_of_function
from mla_contract.audit.model.index import Function
from tests.audit.rules.drift_trees import BASE, open_case, open_files

PLAIN = """
def split(lens, decode_threshold=1):
    count = 0
    for n in lens:
        if n > decode_threshold:
            break
        count += 1
    return count
"""


def function(source: str, name: str = "split") -> Function:
    """Return a function of a one-file tree."""
    project = open_files({"vllm/__init__.py": "", "vllm/m.py": source})
    module = project.index.get("vllm.m")
    assert module is not None
    return next(f for f in project.index.functions(module) if f.node.name == name)


def digest(source: str) -> str:
    """Return the hash of the first function of a source."""
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    return function_hash(node)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("def split(lens, decode_threshold=1)", "def cut(xs: list[int], t: int = 1) -> int")
        .replace("lens", "xs")
        .replace("> decode_threshold", "> t")
        .replace("count", "k"),
        PLAIN.replace("    count = 0", '    """Count decodes."""\n    count: int = 0  # so far'),
        PLAIN.replace("\ndef", "\n@wrapped\ndef"),
    ],
)
def test_function_hash_rewritten_copy_is_the_same(other: str) -> None:
    """Names, annotations, docstrings, comments and decorators do not count."""
    assert digest(other) == digest(PLAIN)


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace(">", ">="),
        PLAIN.replace("count += 1", "count += 2"),
        PLAIN.replace("return count", "return decode_threshold"),
        PLAIN.replace("decode_threshold=1", "decode_threshold=2"),
    ],
)
def test_function_hash_changed_copy_differs(other: str) -> None:
    """An operator, a constant, another variable and another default count."""
    assert digest(other) != digest(PLAIN)


def test_function_hash_integer_too_long_for_a_decimal_counts() -> None:
    """Python writes no decimal of more than 4,300 digits; such a constant counts like any other."""
    long, longer = (f"def f():\n    return {hex(16**5000 + n)}\n" for n in (0, 1))
    assert digest(long) != digest(longer)
    assert digest(long) == digest(long.replace("f()", "g()"))


def test_likeness_orders_copy_before_stranger() -> None:
    """A copy with one change is near 1, another function is not."""
    copy, stranger = PLAIN.replace(">", ">="), "def f(a):\n    return [b.c for b in a if b]\n"
    plain, copied, other = (
        shingles(function(s, n).node) for s, n in ((PLAIN, "split"), (copy, "split"), (stranger, "f"))
    )
    assert likeness(plain, plain) == 1.0
    assert likeness(plain, copied) > 0.7 > 0.4 > likeness(plain, other)


def test_shared_functions_base_tree_lists_imported_planners() -> None:
    """The shared planners are those that other modules import, each with its hash."""
    hashes = shared_functions(open_case(BASE))
    home = "vllm.v1.attention.backends.utils"
    assert list(hashes) == [f"{home}:split_decodes_and_prefills", f"{home}:split_prefill_chunks"]
    assert all(len(value) == 16 for value in hashes.values())


def test_history_shipped_profiles_know_functions_and_fields() -> None:
    """A hash is traced to its releases, a dropped field to the last release that had it; strangers to nothing."""
    assert last_release_with("CommonAttentionMetadata", "seq_lens_cpu") == "0.29"
    assert last_release_with("CommonAttentionMetadata", "no_such_field") is None
    assert releases_of_function("split_decodes_and_prefills", "0" * 16) is None
