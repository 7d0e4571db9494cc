"""The logits kernels: what lies outside a row's window is whatever was there."""

from __future__ import annotations

import torch
from torch import Tensor

from mla_contract.testing.aiter_double.chip import FP8_MAX, Arguments, Chip, require
from mla_contract.testing.aiter_double.indexer import _bytes

GARBAGE = 3.0e38
"""What columns outside the windows hold: larger than any logit, so that a careless top-k selects them."""


def fp8_mqa_logits(chip: Chip, a: Arguments) -> Tensor:
    """Return the logits as a view of rows padded to 256 columns."""
    q, k = a["Q"], a["KV"]
    heads, dim = q.shape[1:]
    if heads & (heads - 1) or dim & (dim - 1):
        raise AssertionError("heads and width must be powers of two")
    require(q.dtype in FP8_MAX and k.dtype in FP8_MAX, "fp8 only")
    require(a["kv_scales"].is_contiguous() and a["cu_starts"].dtype is torch.int32, "scales and windows")
    num_rows, num_keys = len(q), len(k)
    clean = a.get("clean_logits", True)
    padded = torch.full((num_rows, -(-num_keys // 256) * 256), -torch.inf if clean else GARBAGE)
    logits = padded[:, :num_keys]
    keys, scale = k.float(), a["kv_scales"].reshape(-1)
    for row in range(num_rows):
        start, end = max(int(a["cu_starts"][row]), 0), min(int(a["cu_ends"][row]), num_keys)
        if start < end:
            dots = q[row].float() @ keys[start:end].T * scale[start:end]
            logits[row, start:end] = (dots.relu() * a["weights"][row][:, None]).sum(0)
    return logits


def deepgemm_fp8_paged_mqa_logits(chip: Chip, a: Arguments) -> str:
    """Write the logits of paged keys, and the -inf of the blocks that they end in; all else keeps its bytes."""
    q, cache, out, size = a["q_fp8"], a["kv_cache"], a["out_logits"], a["KVBlockSize"]
    table, shuffle, dim = a["kv_indices"], a["Preshuffle"], a["q_fp8"].shape[3]
    if a["ChunkK"] % size and size % a["ChunkK"]:
        raise AssertionError("ChunkK and KVBlockSize do not divide each other")
    if cache.shape[1] != size or (shuffle and size % 16):
        raise AssertionError("KVBlockSize")
    require(shuffle or size == 1, "larger pages that are not shuffled are misread")
    require(table.is_contiguous() and table.dtype is torch.int32 and a["context_lens"].dtype is torch.int32, "tables")
    require(not shuffle or (dim == 128 and q.shape[2] % 32 == 0), "the shuffled kernel needs 128 dims and 32 heads")
    require(q.dtype is chip.fp8, "the wrong flavour of fp8 would be reinterpreted")
    pages = cache.view(torch.uint8).as_strided((len(cache), size * cache.shape[3]), (cache.stride(0), 1))
    for req, length in enumerate(a["context_lens"].reshape(-1).tolist()):
        if length <= 0:
            continue
        keys = torch.stack(
            [_key(pages[int(table[req, p // size])], p % size, size, dim, chip, a) for p in range(length)]
        )
        written = -(-length // size) * size if shuffle else length
        require(written <= out.stride(0), "the last block is stored behind the row")
        for n in range(q.shape[1]):
            row = req * q.shape[1] + n
            seen = length - q.shape[1] + n + 1
            out.as_strided((written,), (1,), out.storage_offset() + row * out.stride(0)).fill_(-torch.inf)
            if seen > 0:
                dots = (q[req, n].float() @ keys[:seen].T).relu()
                out[row, :seen] = (dots * a["weights"][row][:, None]).sum(0)
    return "double"


def _key(page: Tensor, token: int, size: int, dim: int, chip: Chip, a: Arguments) -> Tensor:
    """Return one dequantised key."""
    value = page[_bytes(token, dim, a["Preshuffle"])].view(chip.fp8).float()
    first = size * dim + token * 4
    return value * page[first : first + 4].clone().view(torch.float32)
