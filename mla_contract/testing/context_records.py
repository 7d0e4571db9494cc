"""Chunked context of a plan as records, in both shapes that releases have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mla_contract.adapters.context_fields import FieldContextPlan
from mla_contract.adapters.context_packed import ContextChunkPlan, PackedContextPlan
from mla_contract.testing import records

if TYPE_CHECKING:
    from torch import Tensor


def tensor(values: Any, dtype: str = "int32") -> Tensor:
    """Return a tensor on the host that owns its elements."""
    import torch

    return torch.from_numpy(np.array(values, dtype=dtype))


def lower_context(
    plan: PackedContextPlan | FieldContextPlan | None,
) -> records.PlainChunkedContext | records.PlainFieldContext | None:
    """Return the chunked-context record of a plan, in the shape that the plan has."""
    if plan is None:
        return None
    if isinstance(plan, FieldContextPlan):
        return _field_context(plan)
    rows = max(chunk.num_context_tokens for chunk in plan.chunks)
    return records.PlainChunkedContext(
        context_lens=tensor(plan.context_lens),
        workspace=tensor(np.zeros((rows, 1)), "float32"),
        chunks=[_context_chunk(index, chunk) for index, chunk in enumerate(plan.chunks)],
        context_lens_list=plan.context_lens.tolist(),
        empty_token_slices=list(plan.empty_token_slices),
    )


def _lists(values: Any) -> Any:
    return None if values is None else values.tolist()


def _context_chunk(index: int, chunk: ContextChunkPlan) -> records.PlainContextChunk:
    shared = chunk.local_starts is not None
    return records.PlainContextChunk(
        index=index,
        request_slice=chunk.request_slice,
        token_slice=chunk.token_slice,
        continuation_token_end=chunk.continuation_token_end,
        is_continuation=chunk.is_continuation,
        num_context_tokens=chunk.num_context_tokens,
        query_start_loc=tensor(chunk.query_start_loc),
        max_query_len=chunk.max_query_len,
        cu_seq_lens=tensor(chunk.cu_seq_lens),
        starts=tensor(chunk.local_starts if shared else chunk.starts),
        max_seq_len=chunk.max_seq_len,
        seq_lens=tensor(chunk.seq_lens),
        token_to_seq=tensor(chunk.token_to_seq()),
        all_rows_active=chunk.all_rows_active,
        padded_local_seq_lens=_lists(chunk.padded_local_seq_lens),
        local_context_lens_allranks=_lists(chunk.local_context_lens_allranks),
        padded_local_cu_seq_lens=tensor(chunk.padded_local_cu_seq_lens) if shared else None,
        padded_local_token_to_seq=tensor(chunk.padded_local_token_to_seq()) if shared else None,
        num_local_context_tokens=chunk.num_local_context_tokens,
        local_starts=_lists(chunk.local_starts),
    )


def _field_context(plan: FieldContextPlan) -> records.PlainFieldContext:
    chunks, shared = len(plan.seq_lens), plan.padded_local_cu_seq_lens is not None
    owners = np.zeros((chunks, max(plan.chunk_total_token)), np.int32)
    for index, total in enumerate(plan.chunk_total_token):
        owners[index, :total] = plan.token_to_seq(index)
    return records.PlainFieldContext(
        cu_seq_lens=tensor(plan.cu_seq_lens),
        starts=tensor(plan.gather_starts),
        seq_tot=list(plan.seq_tot),
        max_seq_lens=list(plan.max_seq_lens),
        seq_lens=tensor(plan.seq_lens),
        workspace=tensor(np.zeros((max(plan.chunk_total_token), 1)), "float32"),
        token_to_seq=tensor(owners),
        chunk_total_token=list(plan.chunk_total_token),
        has_empty_context=list(plan.has_empty_context),
        padded_local_chunk_seq_lens=_lists(plan.padded_local_chunk_seq_lens),
        local_context_lens_allranks=_lists(plan.local_context_lens_allranks),
        padded_local_cu_seq_lens=tensor(plan.padded_local_cu_seq_lens) if shared else None,
        cu_seq_lens_lst=plan.cu_seq_lens.tolist() if shared else None,
        chunk_size=plan.chunk_size,
    )
