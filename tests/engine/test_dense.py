"""The validator in the real engine: silent on vLLM's own dense backend, loud on a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.runs import lines_of, run_engine

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("level", ["structural", "values"])
def test_engine_of_vllms_dense_backend_has_no_violation(dense_model: Path, level: str) -> None:
    """Chunked and mixed steps of the in-tree CPU backend pass in ``error``, and the tokens are those without us."""
    run = run_engine(dense_model, "error", level)
    assert run.outcome["error"] == "", run.outcome["message"]
    (armed,) = lines_of(run, "mla-contract: armed")
    assert f"mode error, level {level}, vLLM 0.32" in armed
    assert "profile 0.32" in armed
    assert "AttentionGroup.build_metadata" in armed
    (seen,) = lines_of(run, "MLACommonMetadata  broken: ")
    steps = run.outcome["steps"][0]
    assert seen.split() == [str(steps), "dense", "MLACommonMetadata", "broken:", "0"]
    assert run.outcome["tokens"] == run_engine(dense_model).outcome["tokens"]


def test_engine_with_preemption_and_prefix_hits_has_no_violation(dense_model: Path) -> None:
    """Few blocks and shared prefixes pass as well."""
    run = run_engine(dense_model, "error", "values", options='{"num_blocks": 36, "prefix_caching": true}')
    assert run.outcome["error"] == "", run.outcome["message"]
    assert lines_of(run, "broken: 0")


def test_engine_without_mode_says_nothing(dense_model: Path) -> None:
    """With the variable unset the installed plugin leaves no trace in the log."""
    run = run_engine(dense_model)
    assert run.outcome["error"] == ""
    assert lines_of(run, "mla-contract:") == []


def test_engine_in_error_mode_stops_the_step_of_the_fault(dense_model: Path, site: Callable[[str], Path]) -> None:
    """A field corrupted at the fifth build ends the run there, and the error names class and field."""
    run = run_engine(dense_model, "error", "structural", site("planted_fault"))
    assert run.outcome["error"] == "ContractError"
    assert "MLACommonMetadata.num_reqs" in run.outcome["message"]
    (seen,) = lines_of(run, "MLACommonMetadata  broken: ")
    assert seen.split() == ["5", "dense", "MLACommonMetadata", "broken:", "1"]


def test_engine_in_warn_mode_logs_once_and_finishes(dense_model: Path, site: Callable[[str], Path]) -> None:
    """The same fault is logged once, counted until exit, and changes no token."""
    run = run_engine(dense_model, "warn", "structural", site("planted_fault"))
    assert run.outcome["error"] == "", run.outcome["message"]
    first = [line for line in lines_of(run, "MLACommonMetadata.num_reqs:") if "WARNING" in line]
    assert len(first) == len({line.split("]")[1] for line in first})
    assert lines_of(run, "mla-contract: violations in this process")
    steps = run.outcome["steps"][0]
    assert any(line.split()[0] == str(steps - 4) for line in lines_of(run, "  MLACommonMetadata.num_reqs"))
    assert run.outcome["tokens"] == run_engine(dense_model).outcome["tokens"]
