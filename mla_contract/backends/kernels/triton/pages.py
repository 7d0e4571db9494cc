"""Writing and gathering the indexer's keys, and mapping positions to slots."""

from __future__ import annotations

import torch
import triton

from mla_contract.backends.kernels.triton import page_kernels
from mla_contract.backends.kernels.triton.checks import array_reason, cache_reason, packed_reason, page_views
from mla_contract.backends.kernels.triton.device import FLOATS, FN, FNUZ, TritonDevice, padded
from mla_contract.backends.kernels.triton.launches import find_launch
from mla_contract.contract.schema.provider import GatherIndexerK, KeyLayout, MapSlots, WriteIndexerK

FP8_RANGE = {FN: (448.0, 2.0**-6), FNUZ: (240.0, 2.0**-7)}
"""Largest finite and smallest normal number of each flavour."""


def write_reason(inputs: WriteIndexerK, device: TritonDevice) -> str | None:
    """Return why keys cannot be written, or None. Sync: none."""
    if inputs.k.dtype not in FLOATS:
        return f"k is {inputs.k.dtype}; known are {', '.join(map(str, FLOATS))}"
    if inputs.k.shape[1] != inputs.format.head_dim or len(inputs.k) < len(inputs.slot_mapping):
        return f"k is {tuple(inputs.k.shape)} for {len(inputs.slot_mapping)} slots of {inputs.format.head_dim} elements"
    reason = array_reason(torch.int64, slot_mapping=inputs.slot_mapping) or packed_reason(k=inputs.k)
    return reason or cache_reason(inputs.cache, inputs.format, device)


def run_write(inputs: WriteIndexerK, device: TritonDevice) -> None:
    """Write the keys of all tokens that have a slot. Sync: none."""
    format, tokens = inputs.format, inputs.slot_mapping.shape[0]
    if tokens == 0:
        return
    launch = find_launch(device.arch, "write")
    values, scales = page_views(inputs.cache, format)
    largest, smallest = (0.0, 0.0) if format.fp8_dtype is None else FP8_RANGE[format.fp8_dtype]
    page_kernels.write_keys[(triton.cdiv(tokens, launch.rows), format.groups)](
        inputs.k,
        inputs.slot_mapping,
        values,
        scales,
        tokens,
        inputs.k.stride(0),
        values.stride(0),
        0 if scales is None else scales.stride(0),
        inputs.cache.shape[1],
        head_dim=format.head_dim,
        group=format.group,
        group_padded=padded(format.group, 1),
        groups=format.groups,
        largest=largest,
        smallest=smallest,
        power_of_two=format.power_of_two_scale,
        shuffled=format.layout is KeyLayout.SHUFFLE,
        block=launch.rows,
        num_warps=launch.warps,
    )


def gather_reason(inputs: GatherIndexerK, device: TritonDevice) -> str | None:
    """Return why keys cannot be gathered, or None. Sync: none."""
    format, k_out, scale_out = inputs.format, inputs.k_out, inputs.scale_out
    reason = cache_reason(inputs.cache, format, device)
    if reason is not None:
        return reason
    if (format.fp8_dtype is None) != (scale_out is None):
        return f"scale_out is {scale_out if scale_out is None else 'given'} for a cache of {format.fp8_dtype}"
    if k_out.dtype not in ((inputs.cache.dtype,) if format.fp8_dtype is None else (torch.uint8, format.fp8_dtype)):
        return f"k_out is {k_out.dtype}: it must have the cache's element type"
    room = min(len(k_out), len(k_out if scale_out is None else scale_out))
    if room < inputs.num_keys:
        return f"the buffers hold {room} keys, the chunk has {inputs.num_keys}"
    reason = array_reason(torch.int32, block_table=inputs.block_table, cu_seq_lens=inputs.cu_seq_lens)
    return reason or array_reason(torch.float32, scale_out=scale_out) or packed_reason(k_out=k_out)


def run_gather(inputs: GatherIndexerK, device: TritonDevice) -> None:
    """Gather the keys of a chunk's requests. Sync: none."""
    format, scale_out = inputs.format, inputs.scale_out
    if inputs.num_keys == 0:
        return
    launch, num_reqs = find_launch(device.arch, "gather"), inputs.block_table.shape[0]
    values, scales = page_views(inputs.cache, format)
    k_out = inputs.k_out if format.fp8_dtype is None else inputs.k_out.view(torch.uint8)
    page_kernels.gather_keys[(triton.cdiv(inputs.num_keys, launch.rows),)](
        values if format.fp8_dtype is None else values.view(torch.uint8),
        scales,
        inputs.block_table,
        inputs.cu_seq_lens,
        k_out,
        scale_out,
        inputs.num_keys,
        num_reqs,
        inputs.block_table.stride(0),
        values.stride(0),
        0 if scales is None else scales.stride(0),
        k_out.stride(0),
        0 if scale_out is None else scale_out.stride(0),
        inputs.cache.shape[1],
        num_reqs.bit_length(),
        head_dim=format.head_dim,
        dim_padded=padded(format.head_dim, 1),
        groups=format.groups,
        shuffled=format.layout is KeyLayout.SHUFFLE,
        block=launch.rows,
        num_warps=launch.warps,
    )


def map_reason(inputs: MapSlots, device: TritonDevice) -> str | None:
    """Return why positions cannot be mapped, or None. Sync: none."""
    return array_reason(
        torch.int32,
        positions=inputs.positions,
        req_id_per_token=inputs.req_id_per_token,
        block_table=inputs.block_table,
        out=inputs.out,
    )


def run_map(inputs: MapSlots, device: TritonDevice) -> None:
    """Map positions to slots. Sync: none."""
    tokens, topk = inputs.positions.shape
    if tokens == 0 or topk == 0:
        return
    launch = find_launch(device.arch, "map")
    page_kernels.map_slots[(tokens, triton.cdiv(topk, launch.columns))](
        inputs.positions,
        inputs.req_id_per_token,
        inputs.block_table,
        inputs.out,
        inputs.block_table.shape[1],
        topk,
        inputs.positions.stride(0),
        inputs.block_table.stride(0),
        inputs.out.stride(0),
        inputs.block_size,
        block=launch.columns,
        num_warps=launch.warps,
    )
