"""Persistent work: the size call and the fill call, both made from one configuration."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from mla_contract.backends.kernels.aiter.binding import AiterCall, has_parameter
from mla_contract.backends.kernels.aiter.device import AiterDevice
from mla_contract.backends.kernels.aiter.kernel_table import KernelVariant, find_variant, padded_heads
from mla_contract.contract.schema.persistent_work import ArraySize, WorkBuffers, WorkConfig, WorkSizes

MODULES = ("aiter", "aiter.ops.attention")
_SIX = tuple(one.name for one in fields(WorkSizes))


def dtype_key(dtype: torch.dtype, device: AiterDevice) -> str:
    """Return how the constraint table names an element type; a foreign fp8 flavour keeps its own name."""
    return "fp8" if dtype is device.fp8 else str(dtype).rpartition(".")[2]


def config_variant(config: WorkConfig, device: AiterDevice) -> KernelVariant | str:
    """Return the table's variant of a configuration, or why there is none."""
    keys = (dtype_key(config.q_dtype, device), dtype_key(config.kv_dtype, device))
    return find_variant(device.arch, *keys, config.num_heads)


def is_charted() -> bool:
    """Return whether this aiter is one that the constraint table describes in full."""
    return has_parameter("mla_decode_fwd", ("aiter.mla",), "causal")


def work_reason(config: WorkConfig, device: AiterDevice) -> str | None:
    """Return why a configuration has no persistent kernel, or None."""
    variant = config_variant(config, device)
    if isinstance(variant, str):
        return variant
    if config.with_lse and not variant.persistent_lse:
        return f"no persistent kernel writes the LSE for {_combination(config, device)}"
    if config.with_lse and not is_charted():
        return "which persistent kernels write the LSE is known only where mla_decode_fwd has 'causal'"
    if variant.needs_dtypes:
        for name in ("dtype_q", "dtype_kv"):
            if not has_parameter("get_mla_metadata_v1", MODULES, name):
                return (
                    f"this aiter's get_mla_metadata_v1 has no parameter {name!r}: "
                    f"planner and kernel would fold heads differently for {_combination(config, device)}"
                )
    return None


def size_call(config: WorkConfig, device: AiterDevice) -> AiterCall | str:
    """Return the call that asks for buffer sizes, or why there is none."""
    return work_reason(config, device) or AiterCall(
        "get_mla_metadata_info_v1",
        MODULES,
        {
            "batch_size": config.num_rows,
            "max_seqlen_qo": 1,
            "num_head_qo": padded_heads(config.num_heads),
            "q_dtype": config.q_dtype,
            "kv_dtype": config.kv_dtype,
            "is_sparse": True,
            "fast_mode": True,
        },
        {"max_split_per_batch": config.max_split_per_batch},
    )


def fill_call(config: WorkConfig, buffers: WorkBuffers | None, device: AiterDevice) -> AiterCall | str:
    """Return the call that plans work into buffers whose ``kv_indptr`` is up to date, or why there is none.

    Without buffers the call serves only to ask whether it binds.

    The first parameters of the size call's result and of this call come in different orders, which keywords make moot.
    """
    variant = config_variant(config, device)
    if isinstance(variant, str):
        return variant
    return work_reason(config, device) or AiterCall(
        "get_mla_metadata_v1",
        MODULES,
        {
            "seqlens_qo_indptr": getattr(buffers, "qo_indptr", None),
            "seqlens_kv_indptr": getattr(buffers, "kv_indptr", None),
            "kv_last_page_lens": getattr(buffers, "kv_last_page_lens", None),
            "num_heads_per_head_k": padded_heads(config.num_heads),
            "num_heads_k": 1,
            "is_causal": True,
            "work_metadata_ptrs": getattr(buffers, "work_meta_data", None),
            "work_info_set": getattr(buffers, "work_info_set", None),
            "work_indptr": getattr(buffers, "work_indptr", None),
            "reduce_indptr": getattr(buffers, "reduce_indptr", None),
            "reduce_final_map": getattr(buffers, "reduce_final_map", None),
            "reduce_partial_map": getattr(buffers, "reduce_partial_map", None),
            "page_size": 1,
            "kv_granularity": variant.granularity,
            "max_seqlen_qo": 1,
            "uni_seqlen_qo": 1,
            "fast_mode": True,
            "max_split_per_batch": config.max_split_per_batch,
        },
        {"dtype_q": config.q_dtype, "dtype_kv": config.kv_dtype},
    )


def sizes_of(answer: Any) -> WorkSizes:
    """Return the sizes that the size call answers; it gives an int for a vector."""
    sizes: dict[str, ArraySize] = {}
    for name, (shape, dtype) in zip(_SIX, answer, strict=True):
        sizes[name] = ((shape,) if isinstance(shape, int) else tuple(shape), dtype)
    return WorkSizes(**sizes)


def allocate_work(config: WorkConfig, sizes: WorkSizes, device: torch.device | str) -> WorkBuffers:
    """Allocate the buffers of a configuration, once; fills write into them.

    Returns:
        Buffers in which the query offsets and page lengths are set, and nothing else.
    """
    arrays = {name: torch.zeros(getattr(sizes, name)[0], dtype=getattr(sizes, name)[1], device=device) for name in _SIX}
    return WorkBuffers(
        config=config,
        qo_indptr=torch.arange(config.num_rows + 1, dtype=torch.int32, device=device),
        kv_indptr=torch.zeros(config.num_rows + 1, dtype=torch.int32, device=device),
        kv_last_page_lens=torch.ones(config.num_rows, dtype=torch.int32, device=device),
        **arrays,
    )


def _combination(config: WorkConfig, device: AiterDevice) -> str:
    """Return a configuration as text."""
    q, kv = dtype_key(config.q_dtype, device), dtype_key(config.kv_dtype, device)
    return f"{config.num_heads} heads, q {q}, kv {kv} on {device.arch}"
