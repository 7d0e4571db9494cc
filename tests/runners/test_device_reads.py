"""vLLM's own builders read no device memory but where their source says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runners.interpreter import missing

ROOT = Path(__file__).parents[2]

TRUE_READS = {
    "rocm_aiter_mla_sparse.py build": "lengths for persistent work, inside gpu_sync_allowed()",
    "indexer.py build_prefill_chunk_metadata": "totals of a rank's keys, under decode context parallelism",
}
"""Reads of vLLM 0.32.0, read in its source: file and function, and what is read."""


@pytest.mark.slow
def test_builders_read_the_device_where_their_source_says_so_and_nowhere_else() -> None:
    """All builders run over both runners' batches; each read is one that the source makes, and both are found."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.runners.reads", "250"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result["found"]) == set(TRUE_READS), result["found"]
    assert sum(result["watched"].values()) >= 200 and len(result["watched"]) >= 3
