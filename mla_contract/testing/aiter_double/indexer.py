"""The quantising writer and the gather of the indexer's cache."""

from __future__ import annotations

import torch
from torch import Tensor

from mla_contract.testing.aiter_double.chip import FP8_MAX, Arguments, Chip, require


def indexer_k_quant_and_cache(chip: Chip, a: Arguments) -> None:
    """Quantise keys and write them to their slots; negative slots are skipped."""
    k, cache, slots = a["k"], a["kv_cache"], a["slot_mapping"]
    require(slots.dtype is torch.int64, "slot_mapping would be read as int64: garbage slots")
    require(a["quant_block_size"] == 128 and k.shape[1] % 128 == 0, "groups of 128 only")
    require(cache.dim() == 3 and cache.is_contiguous() and k.is_contiguous(), "packed pages")
    if not isinstance(a["scale_fmt"], str):
        raise TypeError("scale_fmt must be a str")
    dim, block_size = k.shape[1], cache.shape[1]
    _check_shuffle(a, block_size, dim)
    limit = FP8_MAX[chip.fp8]
    for token in range(min(len(k), len(slots))):
        slot = int(slots[token])
        if slot < 0:
            continue
        group = k[token].float().view(-1, 128)
        scale = group.abs().amax(1).clamp(min=1e-4) / limit
        if a["scale_fmt"] == "ue8m0":
            scale = torch.exp2(torch.ceil(torch.log2(scale)))
        value = (group / scale[:, None]).clamp(-limit, limit).to(chip.fp8).view(torch.uint8).flatten()
        page = cache.view(torch.uint8)[slot // block_size].flatten()
        page[_bytes(slot % block_size, dim, a.get("preshuffle", False))] = value
        first = block_size * dim + slot % block_size * 4 * len(scale)
        page[first : first + 4 * len(scale)] = scale.view(torch.uint8)


def cp_gather_indexer_k_quant_cache(chip: Chip, a: Arguments) -> None:
    """Gather keys and scales; a row that belongs to no sequence would read an uninitialised variable."""
    cache, bounds, table = a["kv_cache"], a["cu_seq_lens"].tolist(), a["block_table"]
    dim, block_size = a["dst_k"].shape[1], cache.shape[1]
    require(len(a["dst_k"]) == bounds[-1], "dst_k has rows that no sequence owns")
    _check_shuffle(a, block_size, dim)
    pages = cache.view(torch.uint8).as_strided((len(cache), cache.shape[1] * cache.shape[2]), (cache.stride(0), 1))
    keys, scales = a["dst_k"].view(torch.uint8), a["dst_scale"].view(torch.uint8)
    width = scales.shape[1]
    for row, (start, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        for place in range(end - start):
            block = int(table[row, place // block_size])
            require(0 <= block < len(cache), "a block that does not exist")
            page, token = pages[block], place % block_size
            keys[start + place] = page[_bytes(token, dim, a.get("preshuffle", False))]
            first = block_size * dim + token * width
            scales[start + place] = page[first : first + width]


def _bytes(token: int, dim: int, shuffle: bool) -> Tensor:
    """Return the bytes of a key's values inside its page."""
    d = torch.arange(dim)
    if not shuffle:
        return token * dim + d
    return token // 16 * 16 * dim + d // 16 * 256 + token % 16 * 16 + d % 16


def _check_shuffle(a: Arguments, block_size: int, dim: int) -> None:
    """Abort on a page that cannot be tiled."""
    fits = block_size % 16 == 0 and dim % 16 == 0
    require(fits or not a.get("preshuffle", False), f"a page of {block_size} cannot be shuffled")
