"""Numbers of the configuration that some clauses need; each is optional."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of the configuration and of the step; None says that it is not known.

    Attributes:
        kernel_block_size: Tokens of one block as the block table counts them.
        slot_span: Slots from one block to the next; the block size unless pages are packed.
        num_blocks: Blocks of the cache.
        row_stride: Elements from one slot to the next.
        wide_addresses: Whether the kernel computes addresses in 64 bits.
        decode_threshold: Longest query that is still a decode.
        uniform_decodes: Whether all decodes must have one length.
        short_extends_are_decodes: Whether short pieces of a prompt may be decodes.
        padding_may_prefill: Whether padding may start the prefills of a uniform split whose short extends are prefills:
            in releases up to 0.30.
        device_lens_differ: Whether device and host query lengths may differ.
        capturing: Whether the batch is built for graph capture.
        dummy: Whether the batch is a dummy or idle step.
        dcp_size: Ranks of decode context parallelism.
        dcp_rank: This rank among them.
        dcp_interleave: Consecutive tokens that one rank stores.
        pcp_size: Ranks of round-robin prefill context parallelism.
        max_num_seqs: Most requests of a step.
        max_capture_size: Largest captured batch.
        next_n: Query tokens of a verified request: drafts and one.
        buffer_rows: Rows of the persistent decode buffers.
        context_rows: Rows of the context workspace over which chunks are planned.
        gather_by_page: Whether the context gather must start at a block.
        pinned_sources: Whether host sources of asynchronous copies can be pinned.
        indexer_rows: States that the indexer's gather buffer holds.
        logits_budget_bytes: Most bytes of one indexer logits matrix.
        compress_ratio: Tokens of one indexer state.
        schedule_clamped: Whether the logits schedule gets lengths of at least one.
        schedule_rows: Rows of the schedule buffer.
        query_rows: Rows of q that the decode kernel is handed.
        topk_tokens: Positions that the indexer selects for each token.
        topk_rows: Rows that the top-k of padded decodes writes back.
        topk_rank: Axes that the kernel wants of the top-k index array.
        topk_shape: Shape of the array that it gets.
        layer_allows_dense: Whether the layer may attend densely.
        gather_reads_layout: Whether the context gather understands the cache layout.
        topk_skipped: Whether the indexer skips scoring of this batch's prefills.
        gather_kind: ``copy`` or ``dequantise``.
        cache_dtype: Element type of the cache.
    """

    kernel_block_size: int | None = None
    slot_span: int | None = None
    num_blocks: int | None = None
    row_stride: int | None = None
    wide_addresses: bool | None = None
    decode_threshold: int | None = None
    uniform_decodes: bool | None = None
    short_extends_are_decodes: bool | None = None
    padding_may_prefill: bool = False
    device_lens_differ: bool = False
    capturing: bool | None = None
    dummy: bool | None = None
    dcp_size: int = 1
    dcp_rank: int = 0
    dcp_interleave: int = 1
    pcp_size: int = 1
    max_num_seqs: int | None = None
    max_capture_size: int | None = None
    next_n: int | None = None
    buffer_rows: int | None = None
    context_rows: int | None = None
    gather_by_page: bool | None = None
    pinned_sources: bool | None = None
    indexer_rows: int | None = None
    logits_budget_bytes: int | None = None
    compress_ratio: int = 1
    schedule_clamped: bool | None = None
    schedule_rows: int | None = None
    query_rows: int | None = None
    topk_tokens: int | None = None
    topk_rows: int | None = None
    topk_rank: int | None = None
    topk_shape: tuple[int, ...] | None = None
    layer_allows_dense: bool | None = None
    gather_reads_layout: bool | None = None
    topk_skipped: bool | None = None
    gather_kind: str | None = None
    cache_dtype: str | None = None

    @property
    def virtual_block(self) -> int:
        """Tokens after which the ranks' turns repeat."""
        return self.dcp_size * self.dcp_interleave

    def context_alignment(self) -> int | None:
        """Return the tokens to which starts of context chunks are aligned, or None when it is not known."""
        if self.gather_by_page is None:
            return None
        page = 1
        if self.gather_by_page:
            if self.kernel_block_size is None:
                return None
            page = self.kernel_block_size
        return lcm(page, self.virtual_block if self.dcp_size > 1 else 1)

    def padded_rows(self, tokens: int) -> int:
        """Return the rows that ``tokens`` leading tokens take on each rank, rounded up to the interleave."""
        if self.dcp_size == 1:
            return tokens
        return -(-tokens // self.virtual_block) * self.dcp_interleave

    def local_lens(self, lens: NDArray[np.int64], rank: int | None = None, *, unit: int = 1) -> NDArray[np.int64]:
        """Return the part of each length that a rank stores.

        Args:
            lens: Any shape, in states of ``unit`` tokens; 0 or more.
            rank: Which; by default this one.
            unit: Tokens of a state; divides the interleave, so that a state lies on one rank.

        Source: vLLM 0.33.0 v1/attention/backends/utils.py, get_dcp_local_seq_lens; the unit is that of
            v1/attention/backends/mla/indexer.py, compressed_cp_interleave_size.
        """
        if self.dcp_size == 1:
            return lens
        run = self.dcp_interleave // unit
        rounds, rest = np.divmod(lens, run * self.dcp_size)
        turn = self.dcp_rank if rank is None else rank
        local: NDArray[np.int64] = rounds * run + np.clip(rest - turn * run, 0, run)
        return local


NO_FACTS = Facts()
"""Nothing is known."""
