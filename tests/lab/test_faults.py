"""The mutation score: every planted fault is reported at the right place, but for a list of misses that is exact."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.clauses.registry import all_clauses as registry
from mla_contract.contract.structure.faults import FAULTS
from tests.lab.fault_table import Score, fault_page, score_faults
from tests.lab.faults import check_subject, detect, planted_faults
from tests.lab.known_misses import KNOWN_MISSES
from tests.lab.subjects import BASES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def score() -> Score:
    """Return the score, computed once."""
    return score_faults()


def test_faults_are_many_and_distinct() -> None:
    """There are at least 300 by hand and mechanically, each with its own kind, class and field."""
    keys = Counter(fault.key for fault in planted_faults())
    assert len(keys) >= 300
    assert set(keys.values()) == {1}
    assert len({fault.kind for fault in planted_faults()}) >= 40


def test_faults_start_from_legal_subjects() -> None:
    """The subject of every fault is accepted before the fault is planted, in both levels."""
    from mla_contract.contract.clauses.registry import judge

    first_of = {fault.base: fault for fault in planted_faults()}
    assert set(BASES) <= set(first_of)
    for fault in first_of.values():
        legal = fault.subject()
        assert judge(legal, Level.VALUES).violations == ()
        assert check_subject(legal, Level.VALUES, fault.protocol) == ()


def test_every_fault_is_reported_or_listed(score: Score) -> None:
    """What no level reports is exactly the list of known misses; every other report names the very field."""
    assert {fault.key for fault in score.misses} == set(KNOWN_MISSES)
    assert not [kind for kind, row in score.kinds.items() if row.in_record]
    assert all(KNOWN_MISSES.values())


def test_expected_codes_exist() -> None:
    """No fault expects a code that the contract does not have."""
    known = {clause.id for clause in registry()} | {fault.code for fault in FAULTS}
    assert {code for fault in planted_faults() for code in fault.codes} <= known


def test_every_clause_reports_some_fault(score: Score) -> None:
    """Each clause is among the expected codes of some fault."""
    expected = {code for fault in planted_faults() for code in fault.codes}
    assert {clause.id for clause in registry()} - expected == set()


def test_detection_of_values_fault_is_silent_in_the_structural_tier() -> None:
    """A fault in elements alone is reported by the values level, and by it only."""
    fault = next(fault for fault in planted_faults() if fault.codes == ("MLA253",))
    found = detect(fault)
    assert (found.level, found.code, found.exact) == (Level.VALUES, "MLA253", True)


def test_fault_page_is_the_file() -> None:
    """docs/faults.md is what the script writes."""
    assert (ROOT / "docs" / "faults.md").read_text(encoding="utf-8") == fault_page()


@pytest.mark.slow
def test_fault_script_with_check_accepts_the_file() -> None:
    """The script's own comparison says the same."""
    script = [sys.executable, "-m", "scripts.make_fault_table", "--check"]
    assert subprocess.run(script, cwd=ROOT, check=False).returncode == 0
