"""The TYPING rules on small trees: what is marked is found, and the corrected twin is silent."""

from __future__ import annotations

import pytest

from mla_contract.audit.rules import ignored_attr_error, untyped_getter
from tests.audit.rules.drift_trees import BASE, FIXTURES, case_files, findings, found, marked, open_case, open_files

RULES = {
    "ignored_attr_error": (ignored_attr_error.RULE,),
    "untyped_getter": (untyped_getter.CONTEXT_RULE, untyped_getter.BUILDER_RULE),
}
BACKEND = "vllm/v1/attention/backend.py"


@pytest.mark.parametrize("name", RULES)
def test_typing_rule_bad_tree_finds_exactly_what_is_marked(name: str) -> None:
    """No marked finding is missing, and the rules find nothing else."""
    case = FIXTURES / "typing" / name
    expected = marked(case, RULES[name])
    assert expected and found(open_case(case), RULES[name]) == expected


@pytest.mark.parametrize("name", RULES)
def test_typing_rule_good_twin_finds_nothing(name: str) -> None:
    """The corrected tree has no finding of the rules."""
    assert found(open_case(FIXTURES / "typing" / f"{name}_good"), RULES[name]) == []


def test_typing_rules_base_tree_find_nothing() -> None:
    """The tree that all cases are laid over is clean."""
    assert found(open_case(BASE), [rule for rules in RULES.values() for rule in rules]) == []


def test_untyped_builder_getter_extension_point_is_info() -> None:
    """A backend cannot annotate the extension point, so that finding informs only."""
    files = case_files(BASE)
    files[BACKEND] = files[BACKEND].replace(' -> type["AttentionMetadataBuilder"]:', ":")
    (finding,) = findings(open_files(files), [untyped_getter.BUILDER_RULE])
    assert (finding.path, finding.field, finding.severity) == (BACKEND, "get_builder_cls", "info")


def test_ignored_attr_error_message_says_who_lacks_the_field() -> None:
    """The finding tells a field that only some code sets from one that the class declares."""
    case = FIXTURES / "typing" / "ignored_attr_error"
    texts = {f.field: f.message for f in findings(open_case(case), [ignored_attr_error.RULE])}
    assert "PlainDecode does not declare it, it is set from outside" in texts["decode.pool"]
    assert "PlainMetadata has it, the declared type does not" in texts["num_actual_tokens"]
