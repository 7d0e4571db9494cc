"""Literals that Python cannot write out, or that stand in odd places, neither stop a rule nor hide a finding."""

from __future__ import annotations

import ast

import pytest

from mla_contract.audit.finding import Finding
from mla_contract.audit.model.nodes import text_of
from mla_contract.audit.policy.sizes import size_of
from mla_contract.audit.project import open_project
from mla_contract.audit.rules import RULES
from tests.audit.test_traps import memory_tree, trap_files

LONG = hex(16**5000)
"""Has more digits in decimal than Python writes."""

TRAP = "vllm/v1/attention/backends/mla/trap.py"
GUARDED = "fn05_super_build"
ODD = f"""

LONG = {LONG}


def odd(attn_metadata, number, names=({LONG},)):
    setattr(attn_metadata, {LONG}, number)
    setattr(attn_metadata, None, number)
    getattr(attn_metadata, {LONG}, number)
    getattr(attn_metadata, {LONG})
    names[{LONG}], names[-5], (number, number)[-5]
    return {LONG} * {LONG} + number
"""


def findings(files: dict[str, str]) -> list[tuple[str, str, int, str | None]]:
    """Return the places of the findings of all rules; a rule that fails fails the test."""
    project = open_project(memory_tree(files), release="0.33.0")
    found: list[Finding] = [finding for rule in RULES for finding in rule.check(project)]
    return sorted((f.code, f.path, f.line, f.field) for f in found)


@pytest.mark.parametrize("name", [GUARDED, "fn09_fusion_pass", "fp13_reservation", "fp15_lazy_vendor_names"])
def test_rules_odd_literals_beside_a_fault_change_nothing(name: str) -> None:
    """A function full of odd literals in every file leaves the findings of all rules as they are."""
    files = trap_files(name)
    plain = findings(files)
    assert plain
    assert findings({path: text + ODD for path, text in files.items()}) == plain


def test_missing_field_guard_that_cannot_be_written_out_is_still_found() -> None:
    """A read behind a test with such a literal is reported, with a name for the test in the place of its text."""
    files = trap_files(GUARDED)
    guarded = files[TRAP].replace("if metadata.num_reqs > 1:", f"if metadata.num_reqs > {LONG}:")
    assert guarded != files[TRAP]
    assert findings({**files, TRAP: guarded}) == findings(files)
    project = open_project(memory_tree({**files, TRAP: guarded}))
    guards = {f.guard for rule in RULES for f in rule.check(project) if f.field == "decode"}
    assert any(guard and guard.startswith("<Compare at ") for guard in guards)


def test_text_of_names_what_cannot_be_written_by_its_place() -> None:
    """Two such expressions are told apart; what can be written is."""
    first, second = (node.value for node in ast.parse(f"{LONG}\n{LONG}\n").body if isinstance(node, ast.Expr))
    assert text_of(first) == "<Constant at 1:0>" != text_of(second)
    assert text_of(ast.parse("a+1", mode="eval").body) == "a + 1"
    assert size_of(first) != size_of(second)
