"""Random batches, legal and in any order, drawn alike for every comparison."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.context_rule import ContextRule
from mla_contract.adapters.indexer_chunks import IndexerRule
from mla_contract.adapters.split import SplitRule


class Draw(NamedTuple):
    """One random batch and rules to plan it by."""

    shape: BatchShape
    split: SplitRule
    context: ContextRule
    indexer: IndexerRule


def draw(rng: np.random.Generator, release: str) -> Draw:
    """Return a batch of 1 to 12 requests, with padding, cached context, flags and rules of all kinds."""
    num_reqs = int(rng.integers(1, 13))
    top = int(rng.choice([1, 2, 4, 8, 64]))
    query_lens = rng.integers(0 if rng.random() < 0.4 else 1, top + 1, num_reqs)
    if rng.random() < 0.4:
        query_lens[:] = np.where(rng.random(num_reqs) < 0.8, query_lens[0], query_lens)
    context = rng.integers(0, int(rng.choice([2, 40, 700, 5000])), num_reqs) * (rng.random(num_reqs) < 0.8)
    sharing = ContextParallel(*_sharing(rng))
    block = int(rng.choice([1, 16, 64]))
    shape = BatchShape.of(
        query_lens,
        query_lens + context,
        num_actual_tokens=int(query_lens.sum()) + int(rng.choice([0, 0, 3])),
        is_prefilling=rng.random(num_reqs) < 0.3,
    )
    alignment = ContextRule(10**9, block, sharing).alignment
    few = -(-int(context.sum()) // 8 // alignment)
    rows = alignment * max(int(rng.integers(1, 40)), few) + int(rng.choice([0, 0, 5]))
    rows = max(rows, alignment * num_reqs) if int(release.split(".")[1]) < 28 else rows
    threshold, uniform, short = int(rng.choice([1, 2, 4, 8])), bool(rng.random() < 0.5), bool(rng.random() < 0.5)
    return Draw(
        shape,
        SplitRule(threshold, uniform, short, release),
        ContextRule(rows, block, sharing, release),
        IndexerRule(int(rng.integers(1, 20000)), int(rng.choice([4, 400, 40_000, 4_000_000]))),
    )


def _sharing(rng: np.random.Generator) -> tuple[Any, ...]:
    """Return size, rank and interleave."""
    if rng.random() < 0.5:
        return (1, 0, 1)
    size = int(rng.choice([2, 4, 8]))
    return (size, int(rng.integers(0, size)), int(rng.choice([1, 2, 16, 64])))
