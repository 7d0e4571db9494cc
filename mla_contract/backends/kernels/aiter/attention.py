"""Sparse attention through ``mla_decode_fwd``: which kernel, with which work, and what is put right around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto

import torch
from torch import Tensor

from mla_contract.backends.kernels.aiter.binding import AiterCall
from mla_contract.backends.kernels.aiter.device import AiterDevice
from mla_contract.backends.kernels.aiter.kernel_table import VALUE_WIDTH, WIDTH, KernelVariant, padded_heads
from mla_contract.backends.kernels.aiter.page_tables import compact, pad_heads, safe_indptr, spread
from mla_contract.backends.kernels.aiter.work import (
    allocate_work,
    config_variant,
    fill_call,
    is_charted,
    size_call,
    sizes_of,
    work_reason,
)
from mla_contract.contract.schema.persistent_work import WorkBuffers, WorkConfig
from mla_contract.contract.schema.provider import SparseAttention

MODULES = ("aiter.mla",)


class LaunchMode(Enum):
    """How the kernel is launched."""

    PLAIN = auto()
    """Without work; the kernel splits by itself."""
    GIVEN = auto()
    """With the caller's work."""
    PLANNED = auto()
    """With work that is planned for this call."""


def attention_reason(inputs: SparseAttention, device: AiterDevice) -> str | None:
    """Return why aiter cannot run the attention, or None. Sync: none."""
    reason = _array_reason(inputs)
    if reason is not None:
        return reason
    mode = choose_mode(inputs, device)
    if isinstance(mode, str):
        return mode
    config = config_of(inputs)
    if mode is LaunchMode.PLANNED:
        for call in (size_call(config, device), fill_call(config, None, device)):
            reason = call if isinstance(call, str) else call.reason()
            if reason is not None:
                return reason
    return _kernel_call(inputs, _variant(config, device), mode, {}).reason()


def config_of(inputs: SparseAttention) -> WorkConfig:
    """Return what the kernel and its work must agree on."""
    return WorkConfig(
        num_rows=inputs.q.shape[0],
        num_heads=inputs.q.shape[1],
        q_dtype=inputs.q.dtype,
        kv_dtype=inputs.kv_cache.dtype,
        with_lse=inputs.lse is not None or inputs.sinks is not None,
        has_empty_rows=inputs.has_empty_rows or inputs.has_invalid,
    )


def choose_mode(inputs: SparseAttention, device: AiterDevice) -> LaunchMode | str:
    """Return how the kernel is launched, or why it cannot be."""
    config = config_of(inputs)
    variant = config_variant(config, device)
    if isinstance(variant, str):
        return variant
    if inputs.work is not None:
        return (
            _work_mismatch(inputs, inputs.work, config) or work_reason(inputs.work.config, device) or LaunchMode.GIVEN
        )
    if variant.plain and is_charted():
        return LaunchMode.PLAIN
    return work_reason(config, device) or LaunchMode.PLANNED


def run_attention(inputs: SparseAttention, device: AiterDevice) -> None:
    """Run the attention; ``attention_reason`` must have returned None. Sync: none."""
    rows, heads = inputs.q.shape[:2]
    if rows == 0:
        return
    config, mode = config_of(inputs), choose_mode(inputs, device)
    if isinstance(mode, str):
        raise ValueError(mode)
    indptr, indices = inputs.kv_indptr, inputs.kv_indices
    if inputs.has_invalid:
        indptr, indices = compact(indptr, indices)
    empty = indptr[1:] == indptr[:-1]
    work = _filled_work(inputs, config, mode, indptr, device)
    widened = config.has_empty_rows if work is None else work.config.has_empty_rows
    safe = safe_indptr(indptr) if work is None and widened else indptr if work is None else work.kv_indptr
    if widened:
        indices = spread(indptr, indices, safe)
    padded = padded_heads(heads)
    out = inputs.out if padded == heads else inputs.out.new_empty(rows, padded, VALUE_WIDTH)
    arguments: dict[str, object] = {
        "q": pad_heads(inputs.q, padded),
        "kv_buffer": inputs.kv_cache.view(-1, 1, 1, WIDTH),
        "o": out,
        "qo_indptr": torch.arange(rows + 1, dtype=torch.int32, device=safe.device),
        "kv_indptr": safe,
        "kv_indices": indices,
        "kv_last_page_lens": torch.ones(rows, dtype=torch.int32, device=safe.device),
    }
    if work is not None:
        arguments |= {"qo_indptr": work.qo_indptr, "kv_last_page_lens": work.kv_last_page_lens}
        arguments |= {name: getattr(work, name) for name in _SIX}
    _, lse = _kernel_call(inputs, _variant(config, device), mode, arguments)()
    _finish(inputs, out[:, :heads], None if lse is None else lse.view(rows, padded)[:, :heads], empty)


_SIX = (
    "work_meta_data",
    "work_indptr",
    "work_info_set",
    "reduce_indptr",
    "reduce_final_map",
    "reduce_partial_map",
)


def _filled_work(
    inputs: SparseAttention, config: WorkConfig, mode: LaunchMode, kv_indptr: Tensor, device: AiterDevice
) -> WorkBuffers | None:
    """Return the work that the kernel gets."""
    if mode is not LaunchMode.PLANNED:
        return inputs.work
    size = size_call(config, device)
    if isinstance(size, str):
        raise ValueError(size)
    work = allocate_work(config, sizes_of(size()), inputs.q.device)
    fill_work(work, kv_indptr, device)
    return work


def fill_work(buffers: WorkBuffers, kv_indptr: Tensor, device: AiterDevice) -> None:
    """Plan work into buffers, for tables in which no row is empty. Sync: none."""
    buffers.kv_indptr.copy_(safe_indptr(kv_indptr) if buffers.config.has_empty_rows else kv_indptr)
    fill = fill_call(buffers.config, buffers, device)
    if isinstance(fill, str):
        raise ValueError(fill)
    fill()


def _kernel_call(
    inputs: SparseAttention, variant: KernelVariant, mode: LaunchMode, arguments: Mapping[str, object]
) -> AiterCall:
    """Return the kernel call; without arguments it serves only to ask whether it binds."""
    names = ["q", "kv_buffer", "o", "qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_lens"]
    if mode is not LaunchMode.PLAIN:
        names.extend(_SIX)
    required = {name: arguments.get(name) for name in names}
    required |= {"max_seqlen_q": 1, "sm_scale": inputs.softmax_scale}
    scales = {"q_scale": inputs.q_scale, "kv_scale": inputs.kv_scale}
    if inputs.q.element_size() == 1:
        one = torch.ones(1, dtype=torch.float32, device=inputs.q.device if arguments else "meta")
        scales = {name: one if scale is None else scale for name, scale in scales.items()}
    required |= {name: scale for name, scale in scales.items() if scale is not None}
    if inputs.lse is not None or inputs.sinks is not None:
        required["return_lse"] = True
        if mode is LaunchMode.PLAIN and variant.lse_splits is not None:
            splits = torch.arange(inputs.q.shape[0] + 1, dtype=torch.int32, device=inputs.q.device)
            required |= {"num_kv_splits": variant.lse_splits, "num_kv_splits_indptr": splits * variant.lse_splits}
    return AiterCall("mla_decode_fwd", MODULES, required)


def _finish(inputs: SparseAttention, value: Tensor, lse: Tensor | None, empty: Tensor) -> None:
    """Write the results: heads cut, sinks applied, rows without an entry put right."""
    if inputs.sinks is not None and lse is not None:
        value = (value.float() * torch.sigmoid(lse - inputs.sinks.float())[:, :, None]).to(inputs.out.dtype)
    if inputs.has_empty_rows or inputs.has_invalid:
        value = value.masked_fill(empty[:, None, None], 0.0)
        lse = None if lse is None else lse.masked_fill(empty[:, None], -torch.inf)
    if value.data_ptr() != inputs.out.data_ptr():
        inputs.out.copy_(value)
    if inputs.lse is not None and lse is not None:
        inputs.lse.copy_(lse)


def _work_mismatch(inputs: SparseAttention, work: WorkBuffers, config: WorkConfig) -> str | None:
    """Return why the caller's work is not for this call."""
    if inputs.has_invalid:
        return "work is planned for the given offsets, which -1 entries would move: promise has_invalid=False"
    planned = replace(work.config, max_split_per_batch=config.max_split_per_batch)
    for name in ("num_rows", "num_heads", "q_dtype", "kv_dtype"):
        if getattr(planned, name) != getattr(config, name):
            return f"work was planned for {name}={getattr(planned, name)}, the call has {getattr(config, name)}"
    for name in ("with_lse", "has_empty_rows"):
        if getattr(config, name) and not getattr(planned, name):
            return f"work was planned with {name}=False, the call has True"
    return None


def _variant(config: WorkConfig, device: AiterDevice) -> KernelVariant:
    """Return the variant of a configuration that has one."""
    variant = config_variant(config, device)
    if isinstance(variant, str):
        raise ValueError(variant)
    return variant


def _array_reason(inputs: SparseAttention) -> str | None:
    """Return why the kernel would misread an array; it checks next to none."""
    width, value_width = inputs.q.shape[2], inputs.out.shape[2]
    if (width, value_width) != (WIDTH, VALUE_WIDTH) or inputs.kv_cache.shape[1] != width:
        return f"width {width} with values of {value_width}: aiter's kernels have {WIDTH} and {VALUE_WIDTH} built in"
    if inputs.out.dtype is not torch.bfloat16:
        return f"out is {inputs.out.dtype}: aiter writes bfloat16"
    for name in ("q", "kv_cache", "out", "kv_indptr", "kv_indices"):
        if not getattr(inputs, name).is_contiguous():
            return f"{name} is not contiguous: aiter passes addresses without strides"
    for name in ("kv_indptr", "kv_indices"):
        if getattr(inputs, name).dtype is not torch.int32:
            return f"{name} is {getattr(inputs, name).dtype}: aiter reads int32 without a check"
    for name, array in (("q_scale", inputs.q_scale), ("kv_scale", inputs.kv_scale)):
        owner = inputs.q if name == "q_scale" else inputs.kv_cache
        if array is not None and owner.element_size() != 1:
            return f"{name} is given for {owner.dtype}: aiter ignores it"
    return None
