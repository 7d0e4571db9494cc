"""vLLM's own sparse builder and indexer builder in the CPU engine: metadata that we did not build, and no violation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.runs import lines_of, run_engine

pytestmark = pytest.mark.slow

OPTIONS = '{"max_tokens": 12, "block_size": 64, "num_blocks": 64}'


@pytest.mark.parametrize("level", ["structural", "values"])
def test_engine_of_vllms_sparse_builders_has_no_violation(
    sparse_model: Path, site: Callable[[str], Path], level: str
) -> None:
    """Every build of both builders passes in ``error``, with chunked prompts and mixed steps."""
    run = run_engine(sparse_model, "error", level, site("in_tree_sparse"), OPTIONS)
    assert run.outcome["error"] == "", run.outcome["message"]
    steps = str(run.outcome["steps"][0])
    (indexer,) = lines_of(run, "DeepseekV32IndexerMetadata  broken: ")
    (sparse,) = [line for line in lines_of(run, " Metadata  broken: ") if "sparse" in line.split()]
    assert indexer.split() == [steps, "indexer", "DeepseekV32IndexerMetadata", "broken:", "0"]
    assert sparse.split() == [steps, "sparse", "Metadata", "broken:", "0"]
