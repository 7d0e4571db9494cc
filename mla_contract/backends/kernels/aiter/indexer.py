"""The indexer's cache and logits through aiter: constraints that aiter does not check, and the calls."""

from __future__ import annotations

import torch
from torch import Tensor

from mla_contract.backends.kernels.aiter.binding import AiterCall
from mla_contract.backends.kernels.aiter.device import AiterDevice
from mla_contract.contract.schema.provider import (
    LOGITS_ALIGNMENT,
    SHUFFLE_TILE,
    ChunkLogits,
    GatherIndexerK,
    IndexerCacheFormat,
    KeyLayout,
    PagedLogits,
    WriteIndexerK,
)

GROUP = 128
"""Elements of a key that share a scale: the only group that the writer's threads cover."""

CACHE_MODULES = ("aiter", "aiter.ops.cache")
CHUNK_MODULES = ("aiter.ops.triton.attention.fp8_mqa_logits", "aiter.ops.triton.fp8_mqa_logits")
PAGED_MODULES = ("aiter.ops.triton.attention.pa_mqa_logits", "aiter.ops.triton.pa_mqa_logits")
KEYS_PER_BLOCK = 256
"""Keys that one block of the paged kernel scores."""


def write_call(inputs: WriteIndexerK, device: AiterDevice) -> AiterCall | str:
    """Return the call that writes keys, or why there is none."""
    reason = _cache_reason(inputs.cache, inputs.format, device)
    if reason is not None:
        return reason
    if inputs.slot_mapping.dtype is not torch.int64:
        return f"slot_mapping is {inputs.slot_mapping.dtype}: aiter reads it as int64 without a check"
    if not (inputs.cache.is_contiguous() and inputs.k.is_contiguous() and inputs.slot_mapping.is_contiguous()):
        return "k, cache and slot_mapping must be contiguous"
    if inputs.k.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"k is {inputs.k.dtype}; aiter quantises float32, float16 and bfloat16"
    return AiterCall(
        "indexer_k_quant_and_cache",
        CACHE_MODULES,
        {
            "k": inputs.k,
            "kv_cache": inputs.cache,
            "slot_mapping": inputs.slot_mapping,
            "quant_block_size": inputs.format.group,
            "scale_fmt": "ue8m0" if inputs.format.power_of_two_scale else "fp32",
            **_preshuffle(inputs.format),
        },
    )


def gather_call(inputs: GatherIndexerK, device: AiterDevice) -> AiterCall | str:
    """Return the call that gathers keys, or why there is none.

    The outputs are cut to ``num_keys`` rows: a row that belongs to no request would read undefined memory.
    """
    reason = _cache_reason(inputs.cache, inputs.format, device)
    if reason is not None:
        return reason
    if inputs.scale_out is None:
        return "scale_out is None, but the cache is quantised"
    if inputs.k_out.element_size() != 1:
        return f"k_out is {inputs.k_out.dtype}: aiter writes bytes"
    if not (inputs.k_out.is_contiguous() and inputs.scale_out.is_contiguous()):
        return "k_out and scale_out must be contiguous"
    if min(len(inputs.k_out), len(inputs.scale_out)) < inputs.num_keys:
        return f"the buffers hold {min(len(inputs.k_out), len(inputs.scale_out))} keys, the chunk has {inputs.num_keys}"
    reason = _int32_reason(block_table=inputs.block_table, cu_seq_lens=inputs.cu_seq_lens)
    return reason or AiterCall(
        "cp_gather_indexer_k_quant_cache",
        CACHE_MODULES,
        {
            "kv_cache": inputs.cache,
            "dst_k": inputs.k_out[: inputs.num_keys],
            "dst_scale": inputs.scale_out[: inputs.num_keys],
            "block_table": inputs.block_table,
            "cu_seq_lens": inputs.cu_seq_lens,
            **_preshuffle(inputs.format),
        },
    )


def chunk_logits_call(inputs: ChunkLogits, device: AiterDevice) -> AiterCall | str:
    """Return the call that scores a chunk, or why there is none."""
    if inputs.k_scale is None:
        return "k_scale is None: aiter scores quantised keys only"
    reason = _fp8_reason("q", inputs.q, device) or _fp8_reason("k", inputs.k, device)
    reason = reason or _heads_reason(inputs.q) or _int32_reason(starts=inputs.starts, ends=inputs.ends)
    if reason is not None:
        return reason
    if not (inputs.k_scale.is_contiguous() and inputs.k_scale.dtype is torch.float32):
        return "k_scale must be contiguous float32"
    flydsl = device.arch == "gfx942"
    return AiterCall(
        "flydsl_fp8_mqa_logits" if flydsl else "fp8_mqa_logits",
        ("aiter.ops.flydsl",) if flydsl else CHUNK_MODULES,
        {
            "Q": inputs.q,
            "KV": inputs.k,
            "kv_scales": inputs.k_scale,
            "weights": inputs.weights,
            "cu_starts": inputs.starts,
            "cu_ends": inputs.ends,
        },
        {"clean_logits": False},
    )


def paged_logits_call(inputs: PagedLogits, device: AiterDevice) -> AiterCall | str:
    """Return the call that scores cached keys, or why there is none."""
    block_size, shuffled = inputs.cache.shape[1], inputs.format.layout is KeyLayout.SHUFFLE
    reason = _cache_reason(inputs.cache, inputs.format, device) or _fp8_reason("q", inputs.q, device)
    reason = reason or _heads_reason(inputs.q)
    reason = reason or _int32_reason(context_lens=inputs.context_lens, block_table=inputs.block_table)
    if reason is not None:
        return reason
    if inputs.context_lens.dim() != 1:
        return "context_lens: aiter takes one length for each request"
    if shuffled == (block_size == 1):
        return f"block_size={block_size} with layout {inputs.format.layout}: aiter reads larger pages shuffled only"
    if shuffled and inputs.q.shape[2] % 32:
        return f"{inputs.q.shape[2]} heads: the shuffled kernel needs a multiple of 32"
    if KEYS_PER_BLOCK % block_size and block_size % KEYS_PER_BLOCK:
        return f"block_size={block_size} neither divides {KEYS_PER_BLOCK} nor is a multiple of it"
    stride = inputs.out.stride(0)
    if stride % LOGITS_ALIGNMENT or stride < inputs.max_model_len or inputs.out.stride(1) != 1:
        return (
            f"out has row stride {stride}: it must be a multiple of {LOGITS_ALIGNMENT} "
            f"and at least max_model_len={inputs.max_model_len}"
        )
    if inputs.out.shape[1] < inputs.max_model_len:
        return f"out has {inputs.out.shape[1]} columns, max_model_len is {inputs.max_model_len}"
    return AiterCall(
        "deepgemm_fp8_paged_mqa_logits",
        PAGED_MODULES,
        {
            "q_fp8": inputs.q,
            "kv_cache": inputs.cache.unsqueeze(2),
            "weights": inputs.weights,
            "out_logits": inputs.out,
            "context_lens": inputs.context_lens,
            "kv_indices": inputs.block_table,
            "max_model_len": inputs.max_model_len,
            "Preshuffle": shuffled,
            "KVBlockSize": block_size,
            "ChunkK": KEYS_PER_BLOCK,
        },
    )


def _preshuffle(format: IndexerCacheFormat) -> dict[str, object]:
    """Return the layout's argument: older releases know the normal layout only, and have no parameter for it."""
    return {"preshuffle": True} if format.layout is KeyLayout.SHUFFLE else {}


def _cache_reason(cache: Tensor, format: IndexerCacheFormat, device: AiterDevice) -> str | None:
    """Return why aiter cannot read or write a cache."""
    if format.fp8_dtype is None:
        return "the cache is not quantised: aiter's indexer kernels know quantised keys only"
    if format.fp8_dtype is not device.fp8:
        return f"the cache holds {format.fp8_dtype}, {device.arch} has {device.fp8}: aiter would misread it silently"
    if format.group != GROUP or format.head_dim != GROUP:
        return f"head_dim={format.head_dim} in groups of {format.group}: aiter needs {GROUP} of both"
    if cache.shape[2] != format.width or cache.element_size() != 1:
        return f"cache rows are {cache.shape[2]} of {cache.dtype}, the format has {format.width} bytes"
    if format.layout is KeyLayout.SHUFFLE and cache.shape[1] % SHUFFLE_TILE:
        return f"block_size={cache.shape[1]}: the shuffled layout needs a multiple of {SHUFFLE_TILE}"
    return None


def _fp8_reason(name: str, array: Tensor, device: AiterDevice) -> str | None:
    """Return why an array is not of the arch's flavour."""
    if array.dtype is device.fp8:
        return None
    return f"{name} is {array.dtype}: aiter on {device.arch} scores {device.fp8} only"


def _heads_reason(q: Tensor) -> str | None:
    """Return why the queries' axes do not fit."""
    heads, dim = q.shape[-2:]
    if heads & (heads - 1) or dim & (dim - 1):
        return f"{heads} heads of {dim}: both must be powers of two"
    return None if q.is_contiguous() else "q must be contiguous"


def _int32_reason(**arrays: Tensor) -> str | None:
    """Return which index array is not contiguous int32."""
    for name, array in arrays.items():
        if array.dtype is not torch.int32 or not array.is_contiguous():
            return (
                f"{name} is {array.dtype} with strides {array.stride()}: aiter reads contiguous int32 without a check"
            )
    return None
