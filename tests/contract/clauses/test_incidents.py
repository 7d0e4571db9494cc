"""Each public incident that metadata can decide: the described batch is reported, the corrected one is accepted."""

from __future__ import annotations

import pytest

from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.clauses.registry import all_clauses as registry
from mla_contract.contract.clauses.registry import judge
from tests.contract.clauses.coverage import COVERED, NOT_DECIDABLE, ROWS
from tests.contract.clauses.incidents import INCIDENTS, Incident

BY_ISSUE = pytest.mark.parametrize(
    "incident", [pytest.param(one, id=f"row{one.row}-{one.issue.strip()}") for one in INCIDENTS]
)


@BY_ISSUE
def test_incident_as_described_is_reported(incident: Incident) -> None:
    """The batch of the public report breaks one of the named clauses."""
    found = {violation.code for violation in judge(incident.bad(), Level.VALUES).violations}
    assert found & set(incident.codes)


@BY_ISSUE
def test_incident_corrected_is_accepted(incident: Incident) -> None:
    """Its corrected twin breaks no clause, and the named ones are decided."""
    outcome = judge(incident.good(), Level.VALUES)
    assert outcome.violations == ()
    assert set(incident.codes) & set(outcome.held)


def test_coverage_names_every_row() -> None:
    """Each row is either tested, or has a reason."""
    assert sorted([*COVERED, *NOT_DECIDABLE]) == sorted(ROWS)
    assert len(COVERED) == len(INCIDENTS)


def test_coverage_names_known_clauses() -> None:
    """Every code in the table is a clause."""
    known = {clause.id for clause in registry()}
    assert {code for codes in COVERED.values() for code in codes} <= known
