"""Our plan and both of our builders equal vLLM's own builders on batches that its runners hand over now."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runners.processes import run_module

COUNT = 4_000


def _compared(*arguments: str) -> dict[str, Any]:
    """Return what the comparison found, in a process of its own."""
    done = run_module("tests.runners.equality", *arguments, timeout_s=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_plans_and_records_equal_those_of_vllm_and_nothing_is_refused() -> None:
    """Splits, rows, tables and chunks over builders, runners, padding, drafts and sharing; no batch is refused."""
    found = _compared(str(COUNT), "7")
    assert found["faults"] == []
    assert found["failed"] == []
    assert found["batches"] >= COUNT
    for name, least in LEAST.items():
        assert found[name] >= least, (name, found)


LEAST = {
    "plans": 3000,
    "records of ours": 1000,
    "decode rows": 500,
    "lengths over ranks": 200,
    "chunks": 100,
    "device differs": 400,
    "v1 padded": 40,
    "v2 padded": 100,
}
"""How often each thing must have been compared, so that the comparison is not vacuous."""


@pytest.mark.slow
def test_comparison_with_a_wrong_threshold_finds_it() -> None:
    """Thresholds that are too large by two give other splits and other records."""
    heads = {line.split(": ", 1)[1].split()[0] for line in _compared("300", "7", "2")["faults"]}
    assert {"num_decodes", "num_prefills"} <= heads
