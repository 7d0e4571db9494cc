"""The smallest inputs of each operation, in the shapes of DeepSeek-V3.2: what a provider is asked about beforehand."""

from __future__ import annotations

from typing import Any

import torch

from mla_contract.contract.schema.persistent_work import WorkConfig
from mla_contract.contract.schema.provider import (
    ChunkLogits,
    GatherIndexerK,
    IndexerCacheFormat,
    MapSlots,
    Operation,
    PagedLogits,
    SizeWork,
    SparseAttention,
    TopkRows,
    WriteIndexerK,
    padded_columns,
)

BLOCK, HEADS, INDEX_HEADS, HEAD_DIM, WIDTH, VALUE_WIDTH, TOPK = 64, 16, 64, 128, 576, 512, 2048


def sample_operations(device: str, fp8: torch.dtype) -> tuple[Operation[Any], ...]:
    """Return one of each operation that needs no other's result, on a device and with its quantised element type."""

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    keys = IndexerCacheFormat(head_dim=HEAD_DIM, fp8_dtype=fp8)
    cache = zeros(1, BLOCK, keys.width, dtype=torch.uint8)
    columns = padded_columns(TOPK)
    logits, weights = zeros(1, columns, dtype=torch.float32), zeros(1, INDEX_HEADS, dtype=torch.float32)
    return (
        WriteIndexerK(k=zeros(1, HEAD_DIM), slot_mapping=zeros(1, dtype=torch.int64), cache=cache, format=keys),
        GatherIndexerK(
            cache=cache,
            format=keys,
            block_table=ints(0).view(1, 1),
            cu_seq_lens=ints(0, 1),
            num_keys=1,
            k_out=zeros(1, HEAD_DIM, dtype=fp8),
            scale_out=zeros(1, 1, dtype=torch.float32),
        ),
        ChunkLogits(
            q=zeros(1, INDEX_HEADS, HEAD_DIM, dtype=fp8),
            k=zeros(1, HEAD_DIM, dtype=fp8),
            k_scale=zeros(1, dtype=torch.float32),
            weights=weights,
            starts=ints(0),
            ends=ints(1),
        ),
        PagedLogits(
            q=zeros(1, 1, INDEX_HEADS, HEAD_DIM, dtype=fp8),
            cache=cache,
            format=keys,
            weights=weights,
            context_lens=ints(1),
            block_table=ints(0).view(1, 1),
            max_model_len=TOPK,
            out=logits,
        ),
        TopkRows(logits=logits, starts=None, ends=ints(1), topk=TOPK, out=zeros(1, TOPK, dtype=torch.int32)),
        MapSlots(
            positions=zeros(1, TOPK, dtype=torch.int32),
            req_id_per_token=ints(0),
            block_table=ints(0).view(1, 1),
            block_size=BLOCK,
            out=zeros(1, TOPK, dtype=torch.int32),
        ),
        SparseAttention(
            q=zeros(1, HEADS, WIDTH),
            kv_cache=zeros(BLOCK, WIDTH),
            kv_indptr=ints(0, 1),
            kv_indices=ints(0),
            out=zeros(1, HEADS, VALUE_WIDTH),
            softmax_scale=1.0,
        ),
        SizeWork(config=WorkConfig(num_rows=1, num_heads=HEADS, q_dtype=torch.bfloat16, kv_dtype=torch.bfloat16)),
    )
