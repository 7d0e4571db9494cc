"""Why a cache cannot hold keys in a format, whichever library reads it."""

from __future__ import annotations

import torch
from torch import Tensor

from mla_contract.contract.schema.provider import SHUFFLE_TILE, IndexerCacheFormat, KeyLayout

SCALE_BYTES = 4
"""Scales are float32 behind the values of a page: pages and keys must end where one can begin."""


def format_reason(format: IndexerCacheFormat, cache: Tensor) -> str | None:
    """Return why a cache does not fit its format, or None. Sync: none.

    Args:
        format: How the cache stores keys.
        cache: [num_blocks, block_size, width].
    """
    block_size, width = cache.shape[1:]
    shuffled = format.layout is KeyLayout.SHUFFLE
    if width != format.width:
        return f"cache rows have {width} elements, the format has {format.width}"
    if format.fp8_dtype is None:
        return "a float cache is never shuffled" if shuffled else None
    if cache.dtype is not torch.uint8:
        return f"a quantised cache is uint8, not {cache.dtype}"
    if format.head_dim % SCALE_BYTES or cache.stride(0) % SCALE_BYTES or cache.storage_offset() % SCALE_BYTES:
        return f"scales would not be aligned: head_dim={format.head_dim}, page of {cache.stride(0)} bytes"
    if shuffled and (block_size % SHUFFLE_TILE or format.head_dim % SHUFFLE_TILE):
        sizes = f"block_size={block_size}, head_dim={format.head_dim}"
        return f"the shuffled layout needs multiples of {SHUFFLE_TILE}: {sizes}"
    return None
