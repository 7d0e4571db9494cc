"""What vLLM's own runners and builders make is healthy, and a fault planted in it is reported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runners.processes import run_module

BUILDS = 300

OPEN: dict[str, str] = {}
"""Codes that healthy engines still raise, with the fact that the clause misreads. Empty is the goal."""

ALL_BUILDERS = 13

UNTOLD = {
    ("indexer_compressed", "slots of another step"),
    ("indexer_compressed", "slots of another step in the record alone"),
}
"""Slots of compressed states are not compared: the plugin does not know how many states a block holds."""


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a survey that ran in a process of its own."""
    target = tmp_path_factory.mktemp("runners") / "survey.json"
    arguments = ["--builds", str(BUILDS), "--seed", "0", "--json", str(target)]
    run = run_module("scripts.survey_runners", *arguments)
    assert target.exists(), run.stderr[-4000:]
    print(run.stdout)
    return json.loads(target.read_text("utf-8"))


def test_healthy_builds_raise_no_alarm_but_the_open_ones(result: Any) -> None:
    """No clause calls a healthy engine broken, but those that are listed."""
    unlisted = {text: times for text, times in result["alarms"].items() if text.partition(" ")[0] not in OPEN}
    assert not unlisted, result["table"]


def test_survey_builds_with_every_builder(result: Any) -> None:
    """The survey is not vacuous: each builder of the table was constructed and has built."""
    assert result["builds"] >= BUILDS
    assert len(result["builders"]) == ALL_BUILDERS


def test_planted_faults_are_reported_in_every_builder(result: Any) -> None:
    """A count that is one too high, and slots of another step, are told from the sound record of each builder."""
    planted = result["planted"]
    assert set(planted) == set(result["builders"])
    missed = [(builder, fault) for builder, faults in planted.items() for fault, told in faults.items() if not told]
    assert set(missed) <= UNTOLD
