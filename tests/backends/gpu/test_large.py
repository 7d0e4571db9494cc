"""Sizes that need a GPU: offsets beyond 32 bits, and contexts of 200,000 tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.contract.schema.provider import (
    ChunkLogits,
    GatherIndexerK,
    IndexerCacheFormat,
    KernelProvider,
    PagedLogits,
    SparseAttention,
    TopkRows,
    WriteIndexerK,
    padded_columns,
)

REFERENCE = ReferenceProvider()
FN, BF16 = torch.float8_e4m3fn, torch.bfloat16
LIMIT = 1 << 31


@pytest.mark.parametrize("rows", [2, 300])
@pytest.mark.parametrize("heads", [16, 128])
def test_attention_slots_beyond_32_bits(kernels: KernelProvider, gpu: torch.device, heads: int, rows: int) -> None:
    """Slots whose offset passes 2^31 elements are read where they lie: split and unsplit, both head classes."""
    slots, used = LIMIT // 576 + 100_000, 4096
    pool = torch.empty(slots, 576, dtype=BF16, device=gpu)
    pool[-used:] = torch.randn(used, 576, device=gpu)
    indices = torch.randint(slots - used, slots, (rows * 512,), device=gpu, dtype=torch.int32)
    assert int(indices.min()) * 576 >= LIMIT
    inputs = SparseAttention(
        q=torch.randn(rows, heads, 576, device=gpu).to(BF16),
        kv_cache=pool,
        kv_indptr=torch.arange(0, rows * 512 + 1, 512, device=gpu, dtype=torch.int32),
        kv_indices=indices,
        out=torch.full((rows, heads, 512), torch.nan, dtype=BF16, device=gpu),
        softmax_scale=576**-0.5,
    )
    wanted = torch.empty(rows, heads, 512, device=gpu)
    REFERENCE.run(replace(inputs, out=wanted, kv_cache=pool[-used:], kv_indices=indices - (slots - used)))
    kernels.run(inputs)
    assert float((inputs.out.float() - wanted).norm() / wanted.norm()) < 5e-3


def test_indexer_cache_beyond_32_bits_and_200k_context(kernels: KernelProvider, gpu: torch.device) -> None:
    """Keys are written, gathered and scored in pages that lie beyond 2^31 bytes, for a context of 200,000 tokens."""
    format, length = IndexerCacheFormat(head_dim=128, fp8_dtype=FN), 200_000
    pages = -(-length // 64)
    total = LIMIT // (64 * 132) + pages + 10
    cache = torch.empty(total, 64, 132, dtype=torch.uint8, device=gpu)
    table = (total - pages + torch.randperm(pages, device=gpu)).int()[None]
    position = torch.arange(length, device=gpu)
    slots = table[0, position // 64].long() * 64 + position % 64
    keys = torch.randn(length, 128, device=gpu).to(BF16)
    kernels.run(WriteIndexerK(k=keys, slot_mapping=slots, cache=cache, format=format))
    small = torch.empty(pages, 64, 132, dtype=torch.uint8, device=gpu)
    moved = slots - (total - pages) * 64
    REFERENCE.run(WriteIndexerK(k=keys, slot_mapping=moved, cache=small, format=format))
    assert torch.equal(cache[-pages:][: pages - 1], small[: pages - 1])
    gathered = GatherIndexerK(
        cache=cache,
        format=format,
        block_table=table,
        cu_seq_lens=torch.tensor([0, length], device=gpu, dtype=torch.int32),
        num_keys=length,
        k_out=torch.empty(length, 128, dtype=FN, device=gpu),
        scale_out=torch.empty(length, 1, device=gpu),
    )
    kernels.run(gathered)
    k_out, scale_out = torch.empty(length, 128, dtype=FN, device=gpu), torch.empty(length, 1, device=gpu)
    local = replace(gathered, cache=small, block_table=table - (total - pages), k_out=k_out, scale_out=scale_out)
    REFERENCE.run(local)
    assert torch.equal(k_out.view(torch.uint8), gathered.k_out.view(torch.uint8))
    assert gathered.scale_out is not None and torch.equal(scale_out, gathered.scale_out)
    q, weights = torch.randn(2, 64, 128, device=gpu).to(FN), torch.randn(2, 64, device=gpu)
    paged = PagedLogits(
        q=q[None],
        cache=cache,
        format=format,
        weights=weights,
        context_lens=torch.tensor([length], device=gpu, dtype=torch.int32),
        block_table=table,
        max_model_len=length,
        out=torch.full((2, padded_columns(length)), torch.nan, device=gpu),
    )
    kernels.run(paged)
    windows = torch.tensor([[0, 0], [length - 1, length]], device=gpu, dtype=torch.int32)
    chunk = ChunkLogits(q=q, k=k_out, k_scale=scale_out.view(-1), weights=weights, starts=windows[0], ends=windows[1])
    wanted = REFERENCE.run(chunk)
    largest = float(wanted[:, : length - 1].abs().max())
    for found in (paged.out, kernels.run(chunk)):
        for row, end in enumerate((length - 1, length)):
            assert float((found[row, :end] - wanted[row, :end]).abs().max()) < 1e-3 * largest


def test_logits_and_topk_beyond_32_bits(kernels: KernelProvider, gpu: torch.device) -> None:
    """Logits of 12,000 tokens over 200,000 keys pass 2^31 elements: the last rows are scored and selected rightly."""
    rows, keys = 12_000, 200_000
    ends = torch.arange(keys - rows + 1, keys + 1, device=gpu, dtype=torch.int32)
    chunk = ChunkLogits(
        q=torch.randn(rows, 2, 32, device=gpu).to(BF16),
        k=torch.randn(keys, 32, device=gpu).to(BF16),
        k_scale=None,
        weights=torch.randn(rows, 2, device=gpu),
        starts=torch.zeros_like(ends),
        ends=ends,
    )
    logits = kernels.run(chunk)
    assert rows * logits.stride(0) > LIMIT
    last = slice(rows - 5, rows)
    part = replace(chunk, q=chunk.q[last], weights=chunk.weights[last], starts=chunk.starts[last], ends=ends[last])
    wanted = REFERENCE.run(part)
    inside = torch.isfinite(wanted)
    assert float((logits[last] - wanted)[inside].abs().max()) < 1e-4
    out = torch.full((rows, 2048), -7, dtype=torch.int32, device=gpu)
    kernels.run(TopkRows(logits=logits, starts=None, ends=ends, topk=2048, out=out, stable=True))
    few = torch.empty(5, 2048, dtype=torch.int32, device=gpu)
    REFERENCE.run(TopkRows(logits=logits[last], starts=None, ends=ends[last], topk=2048, out=few, stable=True))
    assert torch.equal(out[last], few)
