"""Inputs at the sizes of a DeepSeek-V3.2 layer, with the bytes and operations that each must cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mla_contract.contract.schema.provider import (
    ChunkLogits,
    GatherIndexerK,
    IndexerCacheFormat,
    KeyLayout,
    Operation,
    PagedLogits,
    SparseAttention,
    TopkRows,
    padded_columns,
)

SLOTS, TOPK, WIDTH, LATENT = 1 << 18, 2048, 576, 512
HEADS, DIM, BLOCK = 64, 128, 64
FN, BF16 = torch.float8_e4m3fn, torch.bfloat16


@dataclass(frozen=True)
class Case:
    """One operation and what it must cost.

    Attributes:
        inputs: The record.
        num_bytes: Each input that it reads once, and each output once.
        flops: Operations of the matrix products.
        fp8: Whether these are products of fp8 numbers.
    """

    inputs: Operation[Any]
    num_bytes: float
    flops: float
    fp8: bool = False


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return normal numbers on the GPU."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16).to(dtype)


def pool() -> Tensor:
    """Return the cache of latents, 2^18 rows."""
    return random((SLOTS, WIDTH), BF16)


def attention(kv: Tensor, rows: int, heads: int, seed: int = 0, *, lse: bool = False, dead: bool = False) -> Case:
    """Return an attention of ``rows`` tokens over 2,048 random slots each; when ``dead``, every sixteenth is -1."""
    generator = torch.Generator("cuda").manual_seed(seed)
    entries = rows * TOPK
    indices = torch.randint(len(kv), (entries,), generator=generator, device="cuda", dtype=torch.int32)
    if dead:
        indices[::16] = -1
    q = random((rows, heads, WIDTH), BF16, seed)
    inputs = SparseAttention(
        q=q,
        kv_cache=kv,
        kv_indptr=torch.arange(0, entries + 1, TOPK, device="cuda", dtype=torch.int32),
        kv_indices=indices,
        out=torch.full((rows, heads, LATENT), torch.nan, dtype=BF16, device="cuda"),
        softmax_scale=WIDTH**-0.5,
        lse=torch.full((rows, heads), torch.nan, device="cuda") if lse else None,
        has_invalid=dead,
        has_empty_rows=False,
    )
    num_bytes = entries * (2 * WIDTH + 4) + 2 * rows * heads * (WIDTH + LATENT)
    return Case(inputs, num_bytes, 2.0 * entries * heads * (WIDTH + LATENT))


def chunk(rows: int, keys: int, dtype: torch.dtype = FN) -> Case:
    """Return a chunk of the last ``rows`` tokens of a prompt of ``keys`` tokens."""
    fp8 = dtype is FN
    ends = torch.arange(keys - rows + 1, keys + 1, device="cuda", dtype=torch.int32)
    inputs = ChunkLogits(
        q=random((rows, HEADS, DIM), dtype, 1),
        k=random((keys, DIM), dtype, 2),
        k_scale=torch.rand(keys, device="cuda") + 0.5 if fp8 else None,
        weights=random((rows, HEADS), torch.float32, 3),
        starts=torch.zeros_like(ends),
        ends=ends,
    )
    seen = float(ends.sum())
    size = dtype.itemsize
    num_bytes = rows * HEADS * (size * DIM + 4) + keys * (size * DIM + 4 * fp8) + 4 * seen
    return Case(inputs, num_bytes, 2.0 * seen * HEADS * DIM, fp8)


def pages(requests: int, length: int, layout: KeyLayout = KeyLayout.NORMAL) -> tuple[Tensor, IndexerCacheFormat]:
    """Return a quantised cache of random keys with room for some requests of one length."""
    format = IndexerCacheFormat(head_dim=DIM, fp8_dtype=FN, layout=layout)
    cache = torch.zeros(requests * -(-length // BLOCK), BLOCK, format.width, dtype=torch.uint8, device="cuda")
    flat = cache.view(len(cache), -1)
    flat[:, : BLOCK * DIM] = random((len(cache), BLOCK * DIM), FN, 4).view(torch.uint8)
    flat.view(torch.float32)[:, BLOCK * DIM // 4 :] = torch.rand(len(cache), BLOCK, device="cuda") + 0.5
    return cache, format


def table(requests: int, length: int, seed: int = 0) -> Tensor:
    """Return scattered blocks of requests of one length."""
    blocks = -(-length // BLOCK)
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randperm(requests * blocks, generator=generator, device="cuda").view(requests, blocks).int()


def gather(requests: int, length: int, layout: KeyLayout = KeyLayout.NORMAL) -> Case:
    """Return the gather of all keys of some requests."""
    cache, format = pages(requests, length, layout)
    keys = requests * length
    inputs = GatherIndexerK(
        cache=cache,
        format=format,
        block_table=table(requests, length),
        cu_seq_lens=torch.arange(0, keys + 1, length, device="cuda", dtype=torch.int32),
        num_keys=keys,
        k_out=torch.zeros(keys, DIM, dtype=torch.uint8, device="cuda"),
        scale_out=torch.zeros(keys, 1, device="cuda"),
    )
    return Case(inputs, 2 * keys * (DIM + 4), 0.0)


def paged(requests: int, length: int, next_n: int = 1, layout: KeyLayout = KeyLayout.NORMAL) -> Case:
    """Return the logits of decode rows over contexts of one length."""
    cache, format = pages(requests, length, layout)
    inputs = PagedLogits(
        q=random((requests, next_n, HEADS, DIM), FN, 1),
        cache=cache,
        format=format,
        weights=random((requests * next_n, HEADS), torch.float32, 3),
        context_lens=torch.full((requests,), length, dtype=torch.int32, device="cuda"),
        block_table=table(requests, length),
        max_model_len=length,
        out=torch.full((requests * next_n, padded_columns(length)), torch.nan, device="cuda"),
    )
    keys = requests * length
    num_bytes = keys * (DIM + 4) + 4 * next_n * keys + requests * next_n * HEADS * (DIM + 4)
    return Case(inputs, num_bytes, 2.0 * keys * next_n * HEADS * DIM, fp8=True)


def topk(rows: int, columns: int, *, windows: bool = False, stable: bool = False) -> Case:
    """Return a selection of 2,048 of ``columns`` random logits, in decode rows or in a prefill's windows."""
    inputs = TopkRows(
        logits=random((rows, columns), torch.float32, 5),
        starts=torch.zeros(rows, dtype=torch.int32, device="cuda") if windows else None,
        ends=torch.full((rows,), columns, dtype=torch.int32, device="cuda"),
        topk=TOPK,
        out=torch.full((rows, TOPK), -7, dtype=torch.int32, device="cuda"),
        stable=stable,
    )
    return Case(inputs, 4.0 * rows * (columns + TOPK), 0.0)
