"""vLLM's own builders read no device memory but where their source says so."""

from __future__ import annotations

import json

import pytest

from tests.runners.processes import run_module

TRUE_READS = {
    "rocm_aiter_mla_sparse.py build": "lengths for persistent work, inside gpu_sync_allowed()",
    "indexer.py build_prefill_chunk_metadata": "totals of a rank's keys, under decode context parallelism",
}
"""Reads of vLLM 0.32.0, read in its source: file and function, and what is read."""


@pytest.mark.slow
def test_builders_read_the_device_where_their_source_says_so_and_nowhere_else() -> None:
    """All builders run over both runners' batches; each read is one that the source makes, and both are found."""
    done = run_module("tests.runners.reads", "250")
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result["found"]) == set(TRUE_READS), result["found"]
    assert sum(result["watched"].values()) >= 200 and len(result["watched"]) >= 3
