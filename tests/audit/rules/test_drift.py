"""The DRIFT rules on small trees: what is marked is found, and the corrected twin is silent."""

from __future__ import annotations

import pytest

from mla_contract.audit.rules import dead_field, defaulted_read, dropped_field, foreign_store, private_copy
from tests.audit.rules.drift_trees import BASE, FIXTURES, findings, found, marked, open_case

RULES = {
    "private_copy": private_copy.RULE,
    "defaulted_read": defaulted_read.RULE,
    "dropped_field": dropped_field.RULE,
    "foreign_store": foreign_store.RULE,
    "dead_field": dead_field.RULE,
}


@pytest.mark.parametrize("name", RULES)
def test_drift_rule_bad_tree_finds_exactly_what_is_marked(name: str) -> None:
    """No marked finding is missing, and the rule finds nothing else."""
    case = FIXTURES / "drift" / name
    expected = marked(case, [RULES[name]])
    assert expected and found(open_case(case), [RULES[name]]) == expected


@pytest.mark.parametrize("name", RULES)
def test_drift_rule_good_twin_finds_nothing(name: str) -> None:
    """The corrected tree has no finding of the rule."""
    assert found(open_case(FIXTURES / "drift" / f"{name}_good"), [RULES[name]]) == []


def test_drift_rules_base_tree_find_nothing() -> None:
    """The tree that all cases are laid over is clean."""
    assert found(open_case(BASE), RULES.values()) == []


def test_private_copy_message_names_shared_function_hashes_and_statements() -> None:
    """The finding says which function is copied, that the hashes differ, and which statements only one of them has."""
    copied, same, other = sorted(
        findings(open_case(FIXTURES / "drift" / "private_copy"), [private_copy.RULE]), key=lambda f: f.line
    )
    assert "split_decodes_and_prefills (vllm/v1/attention/backends/utils.py:6)" in copied.message
    assert "only here: `if common_attn_metadata.max_query_len <= decode_threshold:`; only in" in copied.message
    assert "(not require_uniform" in copied.message.partition("only in the shared one: ")[2]
    assert "same hash" in same.message and "will not follow the next change" in same.message
    assert "`(self, context_lens, max_rows)`" in other.message and "and 9 more" in other.message


def test_dropped_field_finding_names_last_release_with_the_field() -> None:
    """The shipped profiles tell which release had the field last."""
    found_ = findings(open_case(FIXTURES / "drift" / "dropped_field"), [dropped_field.RULE])
    assert all("the last release with it is vLLM 0.29" in f.message for f in found_)
    assert {f.cls for f in found_} == {"vllm.v1.attention.backend.CommonAttentionMetadata"}


def test_dead_field_untyped_read_elsewhere_counts() -> None:
    """A field that only an untyped function of another module reads is not dead."""
    fields = {f.field for f in findings(open_case(FIXTURES / "drift" / "dead_field"), [dead_field.RULE])}
    assert fields == {"unused_rows", "num_reqs"}
