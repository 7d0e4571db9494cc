"""What vLLM's builders make for layers of their own is healthy, and each planted fault is reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runners.interpreter import missing

ROOT = Path(__file__).parents[2]
KINDS = {"window": 1, "compressed": 5, "compressor": 2}
"""How many builders make each kind of record."""

UNREAD = {("compressor_ring", "block_size missing")}
"""What nothing reads is not owed: a ring's record has no size of a block."""


@pytest.fixture(scope="module")
def result() -> Any:
    """Return a survey that ran in a process of its own, as the interpreter must be chosen before vLLM is imported."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    run = subprocess.run(
        [sys.executable, "-m", "tests.runners.layer_survey", "2"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
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
