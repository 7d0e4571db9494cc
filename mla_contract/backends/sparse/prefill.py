"""The prefill record of a sparse backend whose short prefills may attend densely, and its chunked context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from mla_contract.adapters.buffers import DevicePlan, expand_owners
from mla_contract.adapters.context_packed import ContextChunkPlan, PackedContextPlan
from mla_contract.errors import InvalidContract

if TYPE_CHECKING:
    from mla_contract.contract.schema.batch import CommonBatch
    from mla_contract.contract.schema.prefill import DensePrefillMetadata

Span: TypeAlias = tuple[int, int]
"""Begin and end of rows."""


@dataclass(kw_only=True)
class ContextChunkRecord:
    """One chunk of context, as vLLM has it since 0.28; owners of gathered rows are expanded when they are read."""

    index: int
    request_slice: slice
    token_slice: slice
    continuation_token_end: int
    is_continuation: bool
    num_context_tokens: int
    query_start_loc: Tensor
    max_query_len: int
    cu_seq_lens: Tensor
    starts: Tensor
    max_seq_len: int
    seq_lens: Tensor
    all_rows_active: bool
    padded_local_seq_lens: list[int] | None = None
    local_context_lens_allranks: list[list[int]] | None = None
    padded_local_cu_seq_lens: Tensor | None = None
    padded_local_token_to_seq: Tensor | None = None
    num_local_context_tokens: int = 0
    local_starts: list[int] | None = None

    @property
    def token_to_seq(self) -> Tensor:
        """Chunk-local owner of each gathered row. Sync: none."""
        return expand_owners(self.cu_seq_lens, self.num_context_tokens)


@dataclass(kw_only=True)
class ChunkedContextRecord:
    """Context of the prefills."""

    context_lens: Tensor
    workspace: Tensor
    chunks: list[ContextChunkRecord]
    context_lens_list: list[int]
    empty_token_slices: list[slice]


@dataclass(kw_only=True)
class SparsePrefill:
    """The prefill requests, renumbered from 0."""

    block_table: Tensor
    query_start_loc: Tensor
    max_query_len: int
    chunked_context: ChunkedContextRecord | None
    use_dense_mha: bool
    query_lens_cpu: Tensor
    q_data_type: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    topk_mask_workspace: Tensor | None = None


def lower_prefill(
    lowered: DevicePlan, batch: CommonBatch, workspace: Tensor, *, use_dense_mha: bool
) -> SparsePrefill | None:
    """Return the prefill record of a plan; None without prefills.

    Args:
        lowered: The plan, on the device.
        batch: The batch.
        workspace: Rows that context is gathered into.
        use_dense_mha: Whether this batch's prefills attend densely.

    Sync: none.
    """
    plan, first = lowered.plan, lowered.plan.split.num_decodes
    if plan.split.num_prefills == 0:
        return None
    lens, table = plan.shape.query_lens[first:], batch.block_table_tensor
    return SparsePrefill(
        block_table=table[first:] if first else table,
        query_start_loc=batch.query_start_loc[first:] - plan.split.num_decode_tokens,
        max_query_len=int(np.maximum.reduce(lens)),
        chunked_context=_context(lowered, workspace),
        use_dense_mha=use_dense_mha,
        query_lens_cpu=torch.from_numpy(lens.copy()),
    )


def _context(lowered: DevicePlan, workspace: Tensor) -> ChunkedContextRecord | None:
    """Return the chunked context; None where no prefill has cached tokens."""
    plan = lowered.plan.context
    if plan is None:
        return None
    if not isinstance(plan, PackedContextPlan):
        raise InvalidContract("context chunks before vLLM 0.28 are parallel lists, which this backend does not lower")
    chunks, cell, edge = [], 0, 0
    for index, chunk in enumerate(plan.chunks):
        size = len(chunk.seq_lens)
        chunks.append(_chunk(index, chunk, lowered, (cell, cell + size), (edge, edge + size + 1)))
        cell, edge = cell + size, edge + size + 1
    return ChunkedContextRecord(
        context_lens=torch.from_numpy(plan.context_lens.copy()),
        workspace=workspace,
        chunks=chunks,
        context_lens_list=plan.context_lens.tolist(),
        empty_token_slices=list(plan.empty_token_slices),
    )


def _chunk(index: int, chunk: ContextChunkPlan, lowered: DevicePlan, cells: Span, edges: Span) -> ContextChunkRecord:
    """Return one chunk's record: views of the persistent buffers."""
    return ContextChunkRecord(
        index=index,
        request_slice=chunk.request_slice,
        token_slice=chunk.token_slice,
        continuation_token_end=chunk.continuation_token_end,
        is_continuation=chunk.is_continuation,
        num_context_tokens=chunk.num_context_tokens,
        query_start_loc=lowered.rows("context_query_start_loc", *edges),
        max_query_len=chunk.max_query_len,
        cu_seq_lens=lowered.rows("context_cu_seq_lens", *edges),
        starts=lowered.rows("context_gather_starts", *cells),
        max_seq_len=chunk.max_seq_len,
        seq_lens=torch.from_numpy(chunk.seq_lens.copy()),
        all_rows_active=chunk.all_rows_active,
        num_local_context_tokens=chunk.num_local_context_tokens,
    )


if TYPE_CHECKING:

    def _is_prefill_metadata(record: SparsePrefill) -> DensePrefillMetadata:
        """Let a type checker compare the record with the contract."""
        return record
