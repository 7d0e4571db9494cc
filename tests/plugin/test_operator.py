"""What an operator reads: each line once, totals that grow, nothing from a process that builds nothing."""

from __future__ import annotations

import logging

import pytest

from mla_contract.plugin.operator import Operator

COUNTS = [("dense", "Record", 7, 2)]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Return the log at the level that an engine shows."""
    caplog.set_level(logging.INFO, "mla_contract")
    return caplog


def test_operator_without_builds_says_nothing(lines: pytest.LogCaptureFixture) -> None:
    """An API server is armed as well, and must not look like a process that checks; builders make the line appear."""
    operator = Operator()
    operator.armed = "armed: mode warn"
    assert lines.messages == []
    operator.say_armed()
    operator.say_armed()
    assert lines.messages == ["mla-contract: armed: mode warn"]


def test_operator_names_each_class_once_and_totals_at_powers_of_ten(lines: pytest.LogCaptureFixture) -> None:
    """A server that is killed has said which class it checked, and how often up to the last power of ten."""
    operator = Operator(clock=lambda: 0.0)
    for number in range(1000):
        operator.say_checked("dense", "Record" if number % 2 else "Other", lambda: COUNTS)
    total = "mla-contract: checked so far: 7 dense Record, 2 broken"
    assert lines.messages == [
        "mla-contract: checks dense metadata of Other from here on",
        "mla-contract: checks dense metadata of Record from here on",
        *[total] * 3,
    ]


def test_operator_says_totals_as_time_goes_by(lines: pytest.LogCaptureFixture) -> None:
    """With few builds the clock decides, at growing intervals; the first build is no time for totals."""
    now = [0.0]
    operator = Operator(clock=lambda: now[0])
    said = []
    for now[0] in (0.0, 59.0, 60.0, 61.0, 179.0, 180.0, 181.0, 420.0):
        lines.clear()
        operator.say_checked("dense", "Record", lambda: COUNTS)
        if any("so far" in message for message in lines.messages):
            said.append(now[0])
    assert said == [60.0, 180.0, 420.0]


def test_operator_says_each_failure_once_and_not_without_end(lines: pytest.LogCaptureFixture) -> None:
    """A check that fails at every step writes its traceback once; texts that never repeat come to an end."""
    operator = Operator()
    for number in (0, 0, *range(500)):
        operator.say_failed(ValueError(str(number)))
    assert len(lines.records) == 20
