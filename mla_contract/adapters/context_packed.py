"""Context chunks as vLLM packs them since 0.28: each names its own requests, and cuts a context only if it must."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mla_contract.adapters.arrays import Int32Array, owners_of, sealed, wide_prefix_sum
from mla_contract.adapters.context_layout import Cells, Layout, LocalCells, cut_contexts, local_rows
from mla_contract.adapters.context_rule import ContextRule
from mla_contract.adapters.equality import compared_by_value


@compared_by_value
class ContextChunkPlan(NamedTuple):
    """One chunk: a run of prefills, and the slice of each one's context that is gathered together.

    Attributes:
        request_slice: Prefills of the chunk; 0 is the batch's first prefill.
        token_slice: Their query tokens; 0 is the batch's first prefill token.
        continuation_token_end: End of the first prefill's query tokens.
        is_continuation: Whether the first prefill's context began in an earlier chunk.
        num_context_tokens: Tokens gathered, over all ranks.
        num_local_context_tokens: Rows gathered on each rank, interleave padding included.
        max_query_len: Longest query, in tokens.
        max_seq_len: Longest slice of context, in tokens.
        all_rows_active: Whether every prefill of the chunk has query tokens; all have context.
        query_start_loc: [chunk_reqs+1] int32, prefix sum of the query lengths.
        cu_seq_lens: [chunk_reqs+1] int32, prefix sum of the slices' lengths.
        starts: [chunk_reqs] int32, context position at which each slice begins.
        seq_lens: [chunk_reqs] int32, tokens of each slice; never 0.
        local_starts: [chunk_reqs] int32, row of this rank's cache at which each slice begins; None without sharing.
        padded_local_seq_lens: [chunk_reqs] int32, rows of each slice on each rank; None without sharing.
        padded_local_cu_seq_lens: [chunk_reqs+1] int32, their prefix sum; None without sharing.
        local_context_lens_allranks: [chunk_reqs, size] int32, true length of the whole context on each rank; or None.
    """

    request_slice: slice
    token_slice: slice
    continuation_token_end: int
    is_continuation: bool
    num_context_tokens: int
    num_local_context_tokens: int
    max_query_len: int
    max_seq_len: int
    all_rows_active: bool
    query_start_loc: Int32Array
    cu_seq_lens: Int32Array
    starts: Int32Array
    seq_lens: Int32Array
    local_starts: Int32Array | None = None
    padded_local_seq_lens: Int32Array | None = None
    padded_local_cu_seq_lens: Int32Array | None = None
    local_context_lens_allranks: Int32Array | None = None

    def token_to_seq(self) -> Int32Array:
        """Return the chunk-local owner of each gathered token: [num_context_tokens] int32, computed anew."""
        return owners_of(self.seq_lens)

    def padded_local_token_to_seq(self) -> Int32Array | None:
        """Return the chunk-local owner of each row gathered on a rank; None without sharing; computed anew."""
        if self.padded_local_seq_lens is None:
            return None
        return owners_of(self.padded_local_seq_lens)


@compared_by_value
class PackedContextPlan(NamedTuple):
    """All chunks, and the flat arrays that their arrays are views of.

    Attributes:
        context_lens: [num_prefills] int32, cached tokens.
        chunks: In order; they partition each context.
        empty_token_slices: Query tokens of each prefill without context: their context output is 0, their LSE -inf.
        gather_starts: [cells] int32, what the gather starts from: local rows under sharing, else context positions.
        seq_lens: [cells] int32, tokens of each slice, chunk after chunk.
        cu_seq_lens: [cells + chunks] int32, each chunk's prefix sum.
        query_start_loc: [cells + chunks] int32, each chunk's prefix sum of query lengths.
        padded_local_cu_seq_lens: [cells + chunks] int32; None without sharing.
    """

    context_lens: Int32Array
    chunks: tuple[ContextChunkPlan, ...]
    empty_token_slices: tuple[slice, ...]
    gather_starts: Int32Array
    seq_lens: Int32Array
    cu_seq_lens: Int32Array
    query_start_loc: Int32Array
    padded_local_cu_seq_lens: Int32Array | None


def packed_chunks(lens: Int32Array, query_start_loc: Int32Array, rule: ContextRule) -> PackedContextPlan:
    """Pack contexts into chunks in order, cutting one at an aligned position when the next does not fit.

    Args:
        lens: [num_prefills] int32, cached tokens, at least one above 0.
        query_start_loc: [num_prefills+1] int32, prefix sum of the prefills' query lengths.
        rule: Workspace, alignment and sharing.

    Sync: none.
    Source: vLLM 0.32.0 model_executor/layers/attention/mla_attention.py, plan_mla_context_chunks and
        build_mla_chunked_context_metadata with align_chunk_to_block.
    """
    sizes: list[int] = lens.tolist()
    empty: list[int] = (lens == 0).nonzero()[0].tolist() if 0 in sizes else []
    cuts = cut_contexts(sizes, empty, wide_prefix_sum(local_rows(lens, rule.parallel)), rule)
    layout = Layout(cuts)
    starts, stops = _slices(lens, layout)
    offsets = query_start_loc.tolist()
    seq_lens = sealed(stops - starts)
    local = LocalCells.of(lens, (starts, stops), layout, rule.parallel) if rule.parallel.size > 1 else None
    cells = Cells(sealed(starts), seq_lens, layout.sums(seq_lens), layout.offsets(query_start_loc, offsets))
    return PackedContextPlan(
        context_lens=sealed(lens),
        chunks=_records(layout, cells, local, query_start_loc, offsets),
        empty_token_slices=tuple([slice(offsets[row], offsets[row + 1]) for row in empty]),
        gather_starts=cells.starts if local is None else local.starts,
        seq_lens=cells.seq_lens,
        cu_seq_lens=cells.cu_seq_lens,
        query_start_loc=cells.query_start_loc,
        padded_local_cu_seq_lens=None if local is None else local.cu_seq_lens,
    )


def _slices(lens: Int32Array, layout: Layout) -> tuple[Int32Array, Int32Array]:
    """Return, for each cell, where its slice of context begins and stops."""
    stops = layout.by_cell(lens)
    starts = np.zeros(len(stops), dtype=np.int32)
    for cut, (part, _) in zip(layout.cuts, layout.parts, strict=True):
        starts[part.start] = cut.begin
        stops[part.stop - 1] = cut.stop
    return starts, stops


def _records(
    layout: Layout, cells: Cells, local: LocalCells | None, query_start_loc: Int32Array, offsets: list[int]
) -> tuple[ContextChunkPlan, ...]:
    """Return one record for each chunk, its arrays views of the flat ones."""
    query_lens = (query_start_loc[1:] - query_start_loc[:-1]).tolist()
    seq_lens, all_active = cells.seq_lens.tolist(), 0 not in query_lens
    records = []
    for (first, end, begin, _), (part, edges) in zip(layout.cuts, layout.parts, strict=True):
        sums = cells.cu_seq_lens[edges]
        views = () if local is None else local.views(part, edges, slice(first, end))
        records.append(
            ContextChunkPlan(
                slice(first, end),
                slice(offsets[first], offsets[end]),
                offsets[first + 1],
                begin > 0,
                int(sums[-1]),
                int(views[2][-1] if views else sums[-1]),
                max(query_lens[first:end]),
                max(seq_lens[part]),
                all_active or 0 not in query_lens[first:end],
                cells.query_start_loc[edges],
                sums,
                cells.starts[part],
                cells.seq_lens[part],
                *views,
            )
        )
    return tuple(records)
