"""A clause that holds for want of what it is about is not counted as held."""

from __future__ import annotations

from mla_contract.contract.clauses.registry import judge
from mla_contract.contract.step.context import StepContext
from tests.contract.clauses.cases import put, subject


def _decodes() -> StepContext:
    """Return a step without prefills."""
    return subject("sparse", queries=(1, 1), lens=(9, 6), decodes=2)


def test_clause_about_prefills_is_not_held_without_prefills() -> None:
    """MLA242 is held where there are prefills, undecided where there are none, and broken in both where it is."""
    assert "MLA242" in judge(subject("sparse")).held
    without = judge(_decodes())
    assert "MLA242" not in without.held and "with a subject" in without.skipped["MLA242"]
    for step in (subject("sparse"), _decodes()):
        broken = put("metadata.prefill_max_seq_len", 900)(step) or step
        assert "MLA242" in {violation.code for violation in judge(broken).violations}
