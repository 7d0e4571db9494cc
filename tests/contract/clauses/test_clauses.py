"""Every clause accepts its good twin, reports its bad one, and never raises."""

from __future__ import annotations

import pytest

from mla_contract.contract.clauses.clause import Clause, Level
from mla_contract.contract.clauses.registry import all_clauses as registry
from mla_contract.contract.clauses.registry import judge
from mla_contract.contract.docs import page_of as explain
from mla_contract.contract.docs import pages
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.host import capturing, device_reads
from tests.contract.clauses.cases import CASES, Case, subject

ALL = registry()
BY_ID = {clause.id: clause for clause in ALL}


@pytest.fixture(params=[clause.id for clause in ALL])
def clause(request: pytest.FixtureRequest) -> Clause:
    """Return each clause in turn."""
    return BY_ID[request.param]


@pytest.fixture
def case(clause: Clause) -> Case:
    """Return the clause's case."""
    return CASES[clause.id]


def test_clause_on_good_subject_holds(clause: Clause, case: Case) -> None:
    """The corrected twin is decided, not skipped, and accepted."""
    assert clause.outcome(case.good()) == ((), None)


def test_clause_on_bad_subject_reports_its_id(clause: Clause, case: Case) -> None:
    """The example that breaks the clause is reported under its id, with what was expected and found."""
    found, reason = clause.outcome(case.bad())
    assert reason is None
    assert {violation.code for violation in found} == {clause.id}
    assert all(violation.path and violation.help for violation in found)
    assert all(violation.expected and violation.got for violation in found)


def test_good_subject_breaks_no_clause_at_all(clause: Clause, case: Case) -> None:
    """The good twin of each clause is good in every other respect."""
    outcome = judge(case.good(), Level.VALUES)
    assert outcome.violations == ()
    assert not [reason for reason in outcome.skipped.values() if reason.startswith("undecidable")]


def test_clause_on_empty_subject_says_what_it_lacks(clause: Clause) -> None:
    """Nothing known means skipped with a reason, never a pass and never an error."""
    found, reason = clause.outcome(StepContext())
    assert found == () and reason and not reason.startswith("undecidable")


def test_clause_on_hostile_subject_never_raises(clause: Clause) -> None:
    """Objects whose every attribute raises are undecidable."""
    bomb = Bomb()
    assert clause.check(StepContext(metadata=bomb, batch=bomb)) == ()


class Bomb:
    """Raises on every read."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


def test_structural_clauses_read_no_element(clause: Clause, case: Case) -> None:
    """A structural clause marks no device read."""
    before = device_reads()
    clause.check(case.good())
    clause.check(case.bad())
    assert clause.level is Level.VALUES or device_reads() == before


def test_values_during_capture_are_refused() -> None:
    """During stream capture the values level is skipped and says so."""
    with capturing():
        outcome = judge(subject(), Level.VALUES)
    assert {reason for code, reason in outcome.skipped.items() if BY_ID[code].level is Level.VALUES} == {
        "stream capture"
    }
    assert judge(subject(), Level.VALUES).skipped != outcome.skipped


def test_cases_cover_the_registry() -> None:
    """Every clause has a case, and every case a clause."""
    assert list(CASES) == sorted(CASES) == [clause.id for clause in ALL]


def test_explain_of_every_code_is_its_page() -> None:
    """Each page names sentence, level, incident and example; an unknown code has none."""
    for clause in ALL:
        page = explain(clause.id)
        assert page is not None
        assert clause.sentence in page and clause.example in page and clause.level.value in page
        assert all(need.text in page for need in clause.needs) and clause.needs
        assert all(incident in page for incident in clause.incident)
    assert explain("MLA107") is not None
    assert explain("MLA999") is None


def test_pages_are_one_for_each_code() -> None:
    """The directory has one page for each code and an index that links to all."""
    made = pages()
    index = made["README.md"]
    assert all(f"]({name})" in index for name in made if name != "README.md")
