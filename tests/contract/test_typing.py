"""mypy on good and bad example backends: exactly the marked diagnostics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.mypy_runs import ROOT, Report, run_mypy, unmatched

EXAMPLES = sorted((ROOT / "tests" / "typing").glob("*.py"))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    """Return what mypy says about all examples, in one run."""
    stubs = Path(__file__).parent / "stubs"
    found, _ = run_mypy(EXAMPLES, "--strict", cwd=tmp_path_factory.mktemp("typing"), sources=(stubs, ROOT))
    return found


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_marked_lines_are_exactly_the_diagnostics(example: Path, reports: list[Report]) -> None:
    """Every diagnostic of an example is marked in place, and every marker is met."""
    surplus, missing = unmatched(example, reports)
    assert (surplus, missing) == ([], [])


@pytest.mark.slow
def test_examples_real_torch_gives_the_same_diagnostics(tmp_path: Path, reports: list[Report]) -> None:
    """The stub of torch that keeps the other tests quick changes no diagnostic."""
    found, _ = run_mypy(EXAMPLES, "--strict", cwd=tmp_path)
    assert found == reports


def test_examples_good_and_bad_are_both_checked(reports: list[Report]) -> None:
    """The bad examples have diagnostics and the good one has none, so neither test above is vacuous."""
    assert {Path(report.path).stem for report in reports} == {"claims_bad", "consumer", "planner"}
    assert "claims_good" in {path.stem for path in EXAMPLES}


def test_unmatched_wrong_marker_is_reported(tmp_path: Path) -> None:
    """A marker that no diagnostic meets, and a diagnostic without a marker, are both told."""
    source = tmp_path / "example.py"
    source.write_text("x = 1  # E: one thing\ny = 2\n")
    surplus, missing = unmatched(source, [Report("example.py", 2, "error", "another thing")])
    assert surplus == ["example.py:2: error: another thing"]
    assert missing == ["example.py:1: error: one thing"]


def test_unmatched_right_marker_is_accepted(tmp_path: Path) -> None:
    """A marker with a part of the text is met by a diagnostic of its line."""
    source = tmp_path / "example.py"
    source.write_text("x = 1  # E: one  # N: a hint\n")
    found = [Report("example.py", 1, "error", "one thing"), Report("example.py", 1, "note", "a hint")]
    assert unmatched(source, found) == ([], [])
