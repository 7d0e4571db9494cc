"""What vLLM's builders make for layers of their own is healthy, and each planted fault is reported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runners.processes import run_module

KINDS = {"window": 1, "compressed": 5, "compressor": 2}
"""How many builders make each kind of record."""

UNREAD = {("compressor_ring", "block_size missing")}
"""What nothing reads is not owed: a ring's record has no size of a block."""


@pytest.fixture(scope="module")
def result() -> Any:
    """Return a survey that ran in a process of its own."""
    run = run_module("tests.runners.layer_survey", "2")
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.strip().splitlines()[-1])


def test_records_of_each_builder_are_checked_as_their_kind(result: Any) -> None:
    """Nothing is left out: every builder has built on both runners, and its record was checked, as one kind."""
    seen = [kind for row in result.values() for kind in row["kinds"]]
    assert {kind: seen.count(kind) for kind in KINDS} == KINDS
    assert all(set(row["builds"]) == {"v1", "v2"} and not row["failed"] for row in result.values())


def test_healthy_records_raise_no_alarm(result: Any) -> None:
    """No clause calls a record of vLLM's own builders broken, in either level."""
    assert {name: row["alarms"] for name, row in result.items() if row["alarms"]} == {}


def test_planted_faults_are_reported(result: Any) -> None:
    """Wrong elements, wrong types, wrong counts and a missing member are told; also in a class of another package."""
    assert all(len(row["told"]) >= 5 for row in result.values())
    missed = {(name, fault) for name, row in result.items() for fault, told in row["told"].items() if not told}
    assert missed == UNREAD
