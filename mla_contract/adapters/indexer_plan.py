"""Indexer chunks with everything a consumer reads: per-token key ranges and local lengths, in states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mla_contract.adapters.arrays import Int32Array, sealed, wide_prefix_sum
from mla_contract.adapters.context_parallel import ContextParallel, local_lens, local_lens_of_ranks
from mla_contract.adapters.indexer_chunks import ChunkSlice, IndexerChunkPlan, IndexerPlan, IndexerRule, slice_runs

if TYPE_CHECKING:
    from mla_contract.adapters.batch import BatchShape
    from mla_contract.adapters.split import Split
    from mla_contract.adapters.tokens import TokenMap


def plan_indexer_chunks(shape: BatchShape, tokens: TokenMap, split: Split, rule: IndexerRule) -> IndexerPlan | None:
    """Return the indexer's prefill chunks.

    Args:
        shape: The batch; ``seq_lens`` are exact on prefills.
        tokens: Its tokens' positions.
        split: Its division.
        rule: Buffer, budget, states and sharing.

    Returns:
        The chunks; None without prefills.

    Raises:
        InvalidBatch: One request has more states than the buffer.

    Sync: none.
    Source: vLLM 0.32.0 v1/attention/backends/mla/indexer.py, DeepseekV32IndexerMetadataBuilder.build and
        build_prefill_chunk_metadata.
    """
    if split.num_prefills == 0:
        return None
    first = split.num_decodes
    seq_lens = shape.seq_lens[first:]
    states = seq_lens if rule.compress_ratio == 1 else sealed(seq_lens // rule.compress_ratio)
    offsets = shape.query_start_loc[first:].tolist()
    slices = slice_runs(wide_prefix_sum(states), offsets, rule)
    runs = Runs(states, slices, rule.parallel.in_states(rule.compress_ratio))
    starts, ends = _key_ranges(shape, tokens, split, runs, rule.compress_ratio)
    chunks = _records((first, offsets), slices, runs, (starts, ends))
    local = None if runs.of_ranks is None else runs.local_cu_seq_lens
    return IndexerPlan(chunks, starts, ends, runs.cu_seq_lens, local, int(seq_lens.max()))


class Runs:
    """Runs of requests that are gathered together, laid out one after the other.

    Attributes:
        states: [num_prefills] int32, states of each request.
        parallel: The sharing, its interleave in states.
        edges: For each run that a slice names, its first edge.
        cu_seq_lens: [num_prefills + runs] int32, the prefix sum of each run; an edge is a place in it.
        local_cu_seq_lens: The same on this rank; itself without sharing.
        before: [num_prefills] int32, states that stand before each request in its run, on this rank.
    """

    def __init__(self, states: Int32Array, slices: tuple[ChunkSlice, ...], parallel: ContextParallel) -> None:
        self.states, self.parallel = states, parallel
        self.of_ranks = local_lens_of_ranks(states, parallel) if parallel.size > 1 else None
        bounds = {begin: end for begin, end, _, _ in slices}
        self.edges: dict[int, int] = {}
        num_edges = 0
        for begin, end in bounds.items():
            self.edges[begin] = num_edges
            num_edges += end - begin + 1
        self.before = np.zeros(len(states), dtype=np.int32)
        self.cu_seq_lens = self._sums(states, bounds, num_edges)
        self.local_cu_seq_lens = self.cu_seq_lens
        if self.of_ranks is not None:
            self.local_cu_seq_lens = self._sums(self.of_ranks[:, parallel.rank], bounds, num_edges)

    def _sums(self, values: Int32Array, bounds: dict[int, int], num_edges: int) -> Int32Array:
        """Return each run's prefix sum, and keep what stands before each request."""
        flat = np.zeros(num_edges, dtype=np.int32)
        for begin, end in bounds.items():
            edge = self.edges[begin]
            np.add.accumulate(values[begin:end], out=flat[edge + 1 : edge + end - begin + 1])
            self.before[begin:end] = flat[edge : edge + end - begin]
        return sealed(flat)

    def local(self, begin: int, end: int, edges: slice) -> tuple[Int32Array, int, int] | tuple[()]:
        """Return a run's prefix sum here, its total and the largest total of a rank; nothing without sharing."""
        if self.of_ranks is None:
            return ()
        sums = self.local_cu_seq_lens[edges]
        return sums, int(sums[-1]), int(self.of_ranks[begin:end].sum(axis=0).max())


def _records(
    place: tuple[int, list[int]], slices: tuple[ChunkSlice, ...], runs: Runs, ranges: tuple[Int32Array, Int32Array]
) -> tuple[IndexerChunkPlan, ...]:
    """Return one record for each slice that has states; a later slice of the same run reuses its keys."""
    first, offsets = place
    records = []
    for begin, end, query_begin, query_end in slices:
        edge = runs.edges[begin]
        edges = slice(edge, edge + end - begin + 1)
        total = int(runs.cu_seq_lens[edges.stop - 1])
        if total == 0:
            continue
        low, high = offsets[begin] + query_begin, offsets[begin] + query_end
        part = slice(low - offsets[0], high - offsets[0])
        keys = (runs.states[begin:end], runs.cu_seq_lens[edges], ranges[0][part], ranges[1][part])
        local = runs.local(begin, end, edges)
        records.append(
            IndexerChunkPlan(slice(first + begin, first + end), low, high, total, query_begin > 0, *keys, *local)
        )
    return tuple(records)


def _key_ranges(
    shape: BatchShape, tokens: TokenMap, split: Split, runs: Runs, ratio: int
) -> tuple[Int32Array, Int32Array]:
    """Return begin and end of the states that each live prefill token may see, in its run's gathered keys."""
    live = slice(int(shape.query_start_loc[split.num_decodes]), tokens.num_live)
    starts = runs.before.repeat(shape.query_lens[split.num_decodes :])
    visible = tokens.visible[live]
    states = sealed(visible if ratio == 1 else visible // ratio)
    if runs.parallel.size > 1:
        states = local_lens(states, runs.parallel)
    return sealed(starts), sealed(starts + states)
