"""Planners that take prefix sums, called with lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mla_contract.adapters.arrays import Int32Array, prefix_sum, wide_prefix_sum
from mla_contract.adapters.indexer_chunks import ChunkSlice, IndexerRule, slice_runs


def start_loc_of(lens: Sequence[int]) -> Int32Array:
    """Return [n+1] int32, from 0 to the total."""
    return prefix_sum(np.asarray(lens))


def split_indexer_chunks(states: ArrayLike, query_lens: ArrayLike, rule: IndexerRule) -> tuple[ChunkSlice, ...]:
    """Return the slices of prefills with these states and query tokens."""
    return slice_runs(wide_prefix_sum(np.asarray(states)), wide_prefix_sum(np.asarray(query_lens)), rule)
