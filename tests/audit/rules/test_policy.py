"""The POLICY rules on fixture trees: what must be found is marked in the sources, and each tree has a silent twin."""

from __future__ import annotations

import pytest

from mla_contract.audit.rule import Rule
from mla_contract.audit.rules import ignored_flag, loop_allocation, workspace_reservation
from tests.audit.rules.test_policy_trees import expected, fixture_files, places_of, project_of

CASES = [
    ("flag", ignored_flag.RULE, "warning"),
    ("twin", ignored_flag.RULE, "info"),
    ("loop", loop_allocation.RULE, "warning"),
    ("workspace", workspace_reservation.RULE, "warning"),
]


@pytest.mark.parametrize(("name", "rule", "severity"), CASES)
def test_policy_rule_bad_tree_finds_exactly_what_is_marked(name: str, rule: Rule, severity: str) -> None:
    """No marked finding is missing, and nothing else is found."""
    files = fixture_files("policy", f"{name}_bad")
    wanted = expected(files, severity)
    assert wanted
    assert places_of(list(rule.check(project_of(files))), wanted) == wanted


@pytest.mark.parametrize(("name", "rule", "severity"), CASES)
def test_policy_rule_good_twin_finds_nothing(name: str, rule: Rule, severity: str) -> None:
    """The corrected tree is silent, with every look-alike in it."""
    assert list(rule.check(project_of(fixture_files("policy", f"{name}_good")))) == []


def test_ignored_flag_finding_names_class_and_honouring_place() -> None:
    """The message leads from the call that ignores the flag to the test that honours it."""
    (finding,) = ignored_flag.RULE.check(project_of(fixture_files("policy", "flag_bad")))
    assert finding.cls == "vllm.v1.attention.backends.mla.indexer.DemoChunk"
    assert finding.reader == "vllm.model_executor.layers.consumers:gather_rows_first"
    assert "vllm/model_executor/layers/consumers.py:7" in finding.message
    assert "gather_index_rows_triton" in finding.message


def test_ignored_flag_constant_flag_finds_nothing() -> None:
    """A flag that no builder sets to anything that varies needs no consumer's attention."""
    files = fixture_files("policy", "flag_bad")
    path = "vllm/v1/attention/backends/mla/indexer.py"
    files[path] = files[path].replace("reuse_rows=start > 0", "reuse_rows=False")
    assert list(ignored_flag.RULE.check(project_of(files))) == []


def test_workspace_reservation_messages_name_both_sides() -> None:
    """Each message shows what is reserved or missing, and where the run asks for it."""
    findings = list(workspace_reservation.RULE.check(project_of(fixture_files("policy", "workspace_bad"))))
    texts = {finding.reader.rpartition(":")[2]: finding.message for finding in findings if finding.reader}
    assert "(hidden_states.shape[0], max_model_len) of 4 bytes" in texts["over"]
    assert "(q.shape[0] * q.shape[1], max_model_len)" not in texts["over"]
    assert "reserves nothing that grows with max_model_len" in texts["nothing"]
    assert "not from the manager" in texts["nothing"]
    assert "1/2 * head_dim" in texts["smaller"] or "head_dim // 2" in texts["smaller"]
    assert texts["beside"].startswith("beside allocates (q.shape[0], max_model_len) of 4 bytes itself")


def test_policy_rules_tree_without_metadata_find_nothing() -> None:
    """A tree that holds no MLA backend has nothing to compare."""
    project = project_of({"vllm/__init__.py": "", "vllm/broken.py": "def f(:"})
    assert [f for _, rule, _ in CASES for f in rule.check(project)] == []
