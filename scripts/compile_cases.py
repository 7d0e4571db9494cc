"""Inputs of every Triton kernel at DeepSeek's sizes, and at the widest that are taken; the arrays have no storage."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from mla_contract.backends.kernels.triton.device import TritonDevice
from mla_contract.backends.kernels.triton.indexer import MAX_DIM, MAX_HEADS, MAX_QUERY_BYTES
from mla_contract.contract.schema.provider import (
    ChunkLogits,
    GatherIndexerK,
    IndexerCacheFormat,
    KeyLayout,
    MapSlots,
    Operation,
    PagedLogits,
    SparseAttention,
    TopkRows,
    WriteIndexerK,
    padded_columns,
)

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TOPK, BLOCK, PAGES = 2048, 64, 4096

Case = tuple[str, Operation[Any]]

ROWS = {"few rows": 1, "many rows": 4096}
"""Rows of an attention that are split, and that are not."""


def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """Return an array that has a shape and strides only: nothing reads it."""
    return torch.empty(shape, dtype=dtype, device="meta")


def attention(
    rows: int,
    heads: int,
    dtypes: tuple[torch.dtype, torch.dtype] = (BF16, BF16),
    widths: tuple[int, int] = (576, 512),
    *,
    slots: int = 1 << 18,
    lse: bool = False,
    has_invalid: bool = True,
) -> SparseAttention:
    """Return an attention of some rows over 2,048 slots each, with the LSE and sinks or without both."""
    (q, kv), (width, latent) = dtypes, widths
    return SparseAttention(
        q=empty(rows, heads, width, dtype=q),
        kv_cache=empty(slots, width, dtype=kv),
        kv_indptr=empty(rows + 1),
        kv_indices=empty(rows * TOPK),
        out=empty(rows, heads, latent, dtype=BF16),
        softmax_scale=width**-0.5,
        lse=empty(rows, heads, dtype=F32) if lse else None,
        sinks=empty(heads, dtype=F32) if lse else None,
        q_scale=empty(1, dtype=F32) if q.itemsize == 1 else None,
        kv_scale=empty(1, dtype=F32) if kv.itemsize == 1 else None,
        has_invalid=has_invalid,
    )


def attentions(fp8: tuple[torch.dtype, ...]) -> Iterator[Case]:
    """Yield attentions of all head counts, and for few and many heads of all element types and widths."""
    for heads, (text, rows), has_invalid in product((8, 16, 32, 64, 128), ROWS.items(), (True, False)):
        name = f"attention, {heads} heads, {text}, {'-1 among slots' if has_invalid else 'no -1'}"
        yield name, attention(rows, heads, has_invalid=has_invalid)
    for heads, (text, rows) in product((16, 128), ROWS.items()):
        name = f"attention, {heads} heads, {text}"
        yield f"{name}, LSE and sinks", attention(rows, heads, lse=True)
        yield f"{name}, cache of 4.5 GiB", attention(rows, heads, slots=1 << 22)
        yield f"{name}, float32", attention(rows, heads, (F32, F32))
        yield f"{name}, float32, width 640", attention(rows, heads, (F32, F32), (640, 512))
        yield f"{name}, width 640", attention(rows, heads, widths=(640, 512))
        yield f"{name}, float16, width 512, no rope", attention(rows, heads, (F16, F16), (512, 512))
        for flavour in fp8:
            yield f"{name}, fp8 cache", attention(rows, heads, (BF16, flavour), lse=True)
            yield f"{name}, fp8, width 640", attention(rows, heads, (flavour, flavour), (640, 512))
    for width, latent in ((80, 64), (72, 48)):
        yield f"attention, 128 heads, width {width}, latent {latent}", attention(1, 128, widths=(width, latent))


def chunk(dtype: torch.dtype, heads: int = 64, dim: int = 128, rows: int = 1024, keys: int = 65536) -> ChunkLogits:
    """Return a chunk of queries over gathered keys."""
    return ChunkLogits(
        q=empty(rows, heads, dim, dtype=dtype),
        k=empty(keys, dim, dtype=dtype),
        k_scale=empty(keys, dtype=F32) if dtype.itemsize == 1 else None,
        weights=empty(rows, heads, dtype=F32),
        starts=empty(rows),
        ends=empty(rows),
    )


def pages(format: IndexerCacheFormat, block_size: int, float_type: torch.dtype = BF16) -> Tensor:
    """Return the indexer's cache."""
    return empty(PAGES, block_size, format.width, dtype=float_type if format.fp8_dtype is None else torch.uint8)


def paged(
    q: torch.dtype, format: IndexerCacheFormat, cache: Tensor, heads: int = 64, next_n: int = 1, length: int = 16384
) -> PagedLogits:
    """Return decode rows of eight requests over cached keys."""
    rows = 8 * next_n
    return PagedLogits(
        q=empty(8, next_n, heads, format.head_dim, dtype=q),
        cache=cache,
        format=format,
        weights=empty(rows, heads, dtype=F32),
        context_lens=empty(8),
        block_table=empty(8, length // cache.shape[1]),
        max_model_len=length,
        out=empty(rows, padded_columns(length), dtype=F32),
    )


def gather(format: IndexerCacheFormat, cache: Tensor, keys: int = 16384) -> GatherIndexerK:
    """Return the gather of the keys of eight requests."""
    return GatherIndexerK(
        cache=cache,
        format=format,
        block_table=empty(8, keys // cache.shape[1]),
        cu_seq_lens=empty(9),
        num_keys=keys,
        k_out=empty(keys, format.head_dim, dtype=cache.dtype),
        scale_out=None if format.fp8_dtype is None else empty(keys, format.groups, dtype=F32),
    )


def write(format: IndexerCacheFormat, cache: Tensor, dtype: torch.dtype = BF16, tokens: int = 1024) -> WriteIndexerK:
    """Return the writing of the keys of new tokens."""
    k = empty(tokens, format.head_dim, dtype=dtype)
    return WriteIndexerK(k=k, slot_mapping=empty(tokens, dtype=torch.int64), cache=cache, format=format)


def logits(fp8: tuple[torch.dtype, ...]) -> Iterator[Case]:
    """Yield logits of gathered and of cached keys in all element types and page layouts, up to the largest shape."""
    for dtype, (heads, dim) in product((*fp8, BF16, F16, F32), ((64, 128), (MAX_HEADS, MAX_DIM))):
        heads = min(heads, MAX_QUERY_BYTES // (dim * dtype.itemsize))
        kind = "fp8" if dtype in fp8 else str(dtype).removeprefix("torch.")
        yield f"chunk logits, {kind}, {heads} heads of {dim}", chunk(dtype, heads, dim)
        format = IndexerCacheFormat(head_dim=dim, fp8_dtype=dtype if dtype in fp8 else None, group=dim)
        for next_n in (1, 4):
            name = f"paged logits, {kind}, {heads} heads of {dim}, {next_n} tokens"
            yield name, paged(dtype, format, pages(format, BLOCK, dtype), heads, next_n)
    for flavour, next_n in product(fp8, (1, 4)):
        shuffled = IndexerCacheFormat(head_dim=128, fp8_dtype=flavour, layout=KeyLayout.SHUFFLE)
        name = f"paged logits, fp8, 64 heads of 128, {next_n} tokens"
        yield f"{name}, shuffled", paged(flavour, shuffled, pages(shuffled, BLOCK), next_n=next_n)
        plain = IndexerCacheFormat(head_dim=128, fp8_dtype=flavour)
        yield f"{name}, pages of 1", paged(flavour, plain, pages(plain, 1), next_n=next_n)
        yield f"{name}, bfloat16 queries", paged(BF16, plain, pages(plain, BLOCK), next_n=next_n)


def moves(fp8: tuple[torch.dtype, ...]) -> Iterator[Case]:
    """Yield what writes, gathers, maps and selects."""
    formats = {
        f"{'bfloat16' if flavour is None else 'fp8'}, {layout}, group {group}": IndexerCacheFormat(
            head_dim=128, fp8_dtype=flavour, layout=layout, group=group, power_of_two_scale=group == 128
        )
        for flavour, layout, group in product((None, *fp8), KeyLayout, (128, 64))
        if flavour is not None or (layout is KeyLayout.NORMAL and group == 128)
    }
    for (name, format), block_size in product(formats.items(), (BLOCK, 1)):
        if format.layout is KeyLayout.NORMAL or block_size == BLOCK:
            cache = pages(format, block_size)
            yield f"gather, {name}, pages of {block_size}", gather(format, cache)
            yield f"write, {name}, pages of {block_size}", write(format, cache)
    for block_size in (BLOCK, 1):
        slots = {"positions": empty(64, TOPK), "out": empty(64, TOPK), "req_id_per_token": empty(64)}
        table = empty(8, 16384 // block_size)
        yield f"map slots, pages of {block_size}", MapSlots(**slots, block_table=table, block_size=block_size)
    for (rows, columns), windows in product(((8, 131072), (1024, 65536), (8, 4096)), (False, True)):
        values, starts = empty(rows, columns, dtype=F32), empty(rows) if windows else None
        name = f"top-k, {rows} rows of {columns}{', windows' if windows else ''}"
        yield name, TopkRows(logits=values, starts=starts, ends=empty(rows), topk=TOPK, out=empty(rows, TOPK))


def cases(device: TritonDevice) -> dict[str, Operation[Any]]:
    """Return the cases by name, with the fp8 flavours that kernels can convert on a device."""
    return dict([*attentions(device.fp8), *logits(device.fp8), *moves(device.fp8)])
