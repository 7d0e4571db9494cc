"""Pages of the indexer's cache: where each byte of a key lies, writing keys and gathering them."""

from __future__ import annotations

import torch
from torch import Tensor

from mla_contract.backends.kernels.reference.quantise import quantise
from mla_contract.contract.schema.provider import (
    SHUFFLE_TILE,
    GatherIndexerK,
    IndexerCacheFormat,
    KeyLayout,
    WriteIndexerK,
)


def value_offsets(tokens: Tensor, block_size: int, format: IndexerCacheFormat) -> Tensor:
    """Return the byte of every value inside its page.

    Args:
        tokens: Token offsets inside their page, [n].
        block_size: Tokens of a page.
        format: How the cache stores keys.

    Returns:
        int64, [n, head_dim].
    """
    token, dim = tokens.long()[:, None], torch.arange(format.head_dim, device=tokens.device)[None]
    if format.layout is KeyLayout.NORMAL:
        return token * format.head_dim + dim
    side = SHUFFLE_TILE
    tile = token // side * (side * format.head_dim) + dim // side * (side * side)
    return tile + token % side * side + dim % side


def scale_offsets(tokens: Tensor, block_size: int, format: IndexerCacheFormat) -> Tensor:
    """Return the float32 element of every scale inside its page, counted from the page's start: int64, [n, groups]."""
    first = block_size * format.head_dim // 4
    group = torch.arange(format.groups, device=tokens.device)[None]
    return first + tokens.long()[:, None] * format.groups + group


def write_keys(inputs: WriteIndexerK) -> None:
    """Write the keys of all tokens that have a slot."""
    format, cache = inputs.format, inputs.cache
    block_size = cache.shape[1]
    stored = inputs.slot_mapping >= 0
    slots = inputs.slot_mapping[stored]
    keys = inputs.k[: len(inputs.slot_mapping)][stored]
    blocks, tokens = slots // block_size, slots % block_size
    if format.fp8_dtype is None:
        cache[blocks, tokens] = keys.to(cache.dtype)
        return
    values, scales = quantise(keys, format.fp8_dtype, format.group, format.power_of_two_scale)
    pages = flat_pages(cache)
    pages[blocks[:, None], value_offsets(tokens, block_size, format)] = values.view(torch.uint8)
    pages.view(torch.float32)[blocks[:, None], scale_offsets(tokens, block_size, format)] = scales


def flat_pages(cache: Tensor) -> Tensor:
    """Return the pages as rows of bytes; a page may be followed by unused bytes."""
    if cache.stride(2) != 1 or cache.stride(1) != cache.shape[2]:
        raise ValueError(f"pages must be packed, got strides {cache.stride()} for shape {tuple(cache.shape)}")
    return cache.as_strided((cache.shape[0], cache.shape[1] * cache.shape[2]), (cache.stride(0), 1))


def read_keys(cache: Tensor, slots: Tensor, format: IndexerCacheFormat) -> tuple[Tensor, Tensor | None]:
    """Return the stored values and scales of ``slots``, [n] of any integer type.

    Returns:
        Values, [n, head_dim], of the format's fp8 type or of the cache's type; float32 scales, [n, groups], or None.
    """
    block_size = cache.shape[1]
    blocks, tokens = slots.long() // block_size, slots.long() % block_size
    if format.fp8_dtype is None:
        return cache[blocks, tokens], None
    pages = flat_pages(cache)
    values = pages[blocks[:, None], value_offsets(tokens, block_size, format)].view(format.fp8_dtype)
    return values, pages.view(torch.float32)[blocks[:, None], scale_offsets(tokens, block_size, format)]


def table_slots(row: Tensor, num_keys: int, block_size: int) -> Tensor:
    """Return the slots of a request's first ``num_keys`` positions, from its row of the block table."""
    position = torch.arange(num_keys, device=row.device)
    return row[position // block_size].long() * block_size + position % block_size


def gather_keys(inputs: GatherIndexerK) -> None:
    """Gather the keys of the chunk's requests. Sync: reads device memory."""
    block_size = inputs.cache.shape[1]
    bounds = inputs.cu_seq_lens.tolist()
    if bounds[-1] != inputs.num_keys:
        raise ValueError(f"num_keys is {inputs.num_keys}, but the prefix sum ends at {bounds[-1]}")
    for row, (start, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        slots = table_slots(inputs.block_table[row], end - start, block_size)
        values, scales = read_keys(inputs.cache, slots, inputs.format)
        target = inputs.k_out[start:end]
        if scales is None or inputs.scale_out is None:
            target.copy_(values)
            continue
        target.view(torch.uint8).copy_(values.view(torch.uint8))
        inputs.scale_out[start:end].copy_(scales)
