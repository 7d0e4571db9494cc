"""Context chunks as vLLM planned them up to 0.27: an even share for each prefill, in parallel arrays over chunks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mla_contract.adapters.arrays import Int32Array, Int64Array, owners_of, sealed
from mla_contract.adapters.context_layout import local_rows
from mla_contract.adapters.context_parallel import local_lens_of_ranks
from mla_contract.adapters.context_rule import ContextRule
from mla_contract.adapters.equality import compared_by_value
from mla_contract.adapters.fault import InvalidBatch


@compared_by_value
@dataclass(frozen=True, slots=True, eq=False)
class FieldContextPlan:
    """All chunks as rows of parallel arrays; a cell is one prefill in one chunk.

    Attributes:
        context_lens: [num_prefills] int32, cached tokens.
        starts: [chunks, num_prefills] int32, context position of each cell, also of empty ones.
        gather_starts: [chunks, num_prefills] int32, local row of each cell under sharing, else ``starts``.
        seq_lens: [chunks, num_prefills] int32, tokens of each cell; 0 where the context has ended.
        cu_seq_lens: [chunks, num_prefills+1] int32, prefix sum along prefills.
        seq_tot: Rows that each rank gathers, for each chunk.
        chunk_total_token: Tokens over all ranks, for each chunk.
        max_seq_lens: Longest cell of each chunk, in tokens.
        has_empty_context: Whether a chunk has an empty cell.
        empty_cells: [empties, 2] int32, (chunk, prefill) of each: context output 0, LSE -inf.
        prefill_tokens_with_context: Query tokens up to the last prefill with context.
        chunk_size: Rows of a cell on each rank, at most.
        padded_local_chunk_seq_lens: [chunks, num_prefills] int32, rows of each cell on each rank; None without sharing.
        padded_local_cu_seq_lens: [chunks, num_prefills+1] int32, their prefix sum; None without sharing.
        local_context_lens_allranks: [num_prefills, size] int32, true local context; None without sharing.
    """

    context_lens: Int32Array
    starts: Int32Array
    gather_starts: Int32Array
    seq_lens: Int32Array
    cu_seq_lens: Int32Array
    seq_tot: tuple[int, ...]
    chunk_total_token: tuple[int, ...]
    max_seq_lens: tuple[int, ...]
    has_empty_context: tuple[bool, ...]
    empty_cells: Int32Array
    prefill_tokens_with_context: int
    chunk_size: int
    padded_local_chunk_seq_lens: Int32Array | None = None
    padded_local_cu_seq_lens: Int32Array | None = None
    local_context_lens_allranks: Int32Array | None = None

    def token_to_seq(self, chunk: int) -> Int32Array:
        """Return the prefill that owns each token of a chunk: [chunk_total_token] int32, computed anew."""
        return owners_of(self.seq_lens[chunk])


def even_chunks(lens: Int32Array, query_start_loc: Int32Array, rule: ContextRule) -> FieldContextPlan:
    """Give each prefill with context the same share of the workspace, and walk all contexts in step.

    Args:
        lens: [num_prefills] int32, cached tokens, at least one above 0.
        query_start_loc: [num_prefills+1] int32, prefix sum of the prefills' query lengths.
        rule: Workspace, alignment and sharing.

    Raises:
        InvalidBatch: A share is shorter than the alignment.

    Sync: none.
    Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py, build_mla_chunked_context_metadata; there the
        share is rounded to blocks on some platforms only, and never to the round of dealing between ranks.
    """
    # All contexts are walked in step, chunk by chunk: prefills without context take no share of the workspace.
    piece = _piece(int(np.count_nonzero(lens)), rule)
    num_chunks = -(-int(lens.max()) // piece)
    starts = np.arange(num_chunks)[:, np.newaxis] * piece + np.zeros_like(lens)
    sizes = (lens - starts).clip(0, piece)
    empty = sizes == 0
    last = int(np.flatnonzero(lens)[-1])
    shared = rule.parallel.size > 1
    local_piece = int(local_rows(np.array(piece), rule.parallel))
    local_starts = starts // piece * local_piece
    local_sizes = (local_rows(lens, rule.parallel) - local_starts).clip(0, local_piece)
    return FieldContextPlan(
        context_lens=sealed(lens),
        starts=sealed(starts),
        gather_starts=sealed(local_starts),
        seq_lens=sealed(sizes),
        cu_seq_lens=_row_sums(sizes),
        seq_tot=tuple(local_sizes.sum(axis=1).tolist()),
        chunk_total_token=tuple(sizes.sum(axis=1).tolist()),
        max_seq_lens=tuple(sizes.max(axis=1).tolist()),
        has_empty_context=tuple((sizes.min(axis=1) == 0).tolist()),
        empty_cells=sealed(np.argwhere(empty)),
        prefill_tokens_with_context=int(query_start_loc[last + 1]),
        chunk_size=local_piece,
        padded_local_chunk_seq_lens=sealed(local_sizes) if shared else None,
        padded_local_cu_seq_lens=_row_sums(local_sizes) if shared else None,
        local_context_lens_allranks=sealed(local_lens_of_ranks(lens, rule.parallel)) if shared else None,
    )


def _piece(num_with_context: int, rule: ContextRule) -> int:
    """Return the aligned share of one prefill, in tokens."""
    piece = rule.workspace_rows // num_with_context // rule.alignment * rule.alignment
    if piece == 0:
        raise InvalidBatch(
            "workspace_rows",
            {"expected": f"at least {num_with_context * rule.alignment}", "got": rule.workspace_rows},
            help="reserve one aligned piece for each prefill, or plan for release 0.28 or later",
        )
    return piece


def _row_sums(sizes: Int64Array) -> Int32Array:
    """Return each row's prefix sum, with a leading 0."""
    sums = np.zeros((sizes.shape[0], sizes.shape[1] + 1), dtype=np.int64)
    sizes.cumsum(axis=1, out=sums[:, 1:])
    return sealed(sums)
