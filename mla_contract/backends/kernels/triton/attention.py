"""Sparse attention: why it cannot run, how rows are split, and the launches."""

from __future__ import annotations

import torch
import triton

from mla_contract.backends.kernels.triton.attention_kernels import attend, merge, pack_live
from mla_contract.backends.kernels.triton.checks import array_reason, packed_reason, type_reason
from mla_contract.backends.kernels.triton.device import SMALLEST_TILE, TritonDevice, dot_type_of, padded, triton_type
from mla_contract.backends.kernels.triton.launches import Launch, attend_class, find_launch
from mla_contract.backends.kernels.triton.tiled_attention_kernel import attend_tiled
from mla_contract.contract.schema.provider import SparseAttention

MAX_LATENT, MAX_ROPE = 512, 128
"""Widest parts of a cached row: a tile of latents stays on the chip for both products."""

MAX_SPLITS = 64
"""Most splits of a row, all of which one program merges."""


def attention_reason(inputs: SparseAttention, device: TritonDevice) -> str | None:
    """Return why the attention cannot run, or None. Sync: none."""
    width, latent = inputs.q.shape[2], inputs.out.shape[2]
    if inputs.kv_cache.shape[1] != width:
        return f"kv_cache rows have {inputs.kv_cache.shape[1]} elements, q has {width}"
    if not latent <= width <= latent + MAX_ROPE or latent > MAX_LATENT:
        return f"width {width} with values of {latent}: at most {MAX_LATENT} values and {MAX_ROPE} elements beside them"
    for name in ("q", "kv_cache"):
        reason = type_reason(name, getattr(inputs, name).dtype, device)
        if reason is not None:
            return reason
    if inputs.out.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"out is {inputs.out.dtype}; the kernel writes float32, bfloat16 and float16"
    reason = array_reason(torch.int32, kv_indptr=inputs.kv_indptr, kv_indices=inputs.kv_indices)
    scales = {"q_scale": inputs.q_scale, "kv_scale": inputs.kv_scale}
    reason = reason or array_reason(torch.float32, lse=inputs.lse, sinks=inputs.sinks, **scales)
    return reason or packed_reason(q=inputs.q, kv_cache=inputs.kv_cache, out=inputs.out)


def launch_of(inputs: SparseAttention, device: TritonDevice) -> Launch:
    """Return the launch configuration of an attention."""
    latent, rope = _padded_widths(inputs)
    return find_launch(device.arch, attend_class(inputs.q.shape[1], latent + rope, attention_type(inputs, device)))


def _padded_widths(inputs: SparseAttention) -> tuple[int, int]:
    """Return the extents of the tiles that hold the latent and the rope part; the latter is unused without one."""
    latent = inputs.out.shape[2]
    return padded(latent), padded(max(inputs.q.shape[2] - latent, 1))


def attention_type(inputs: SparseAttention, device: TritonDevice) -> torch.dtype:
    """Return the element type of both products; weights are rounded to it, so it has at least 16 bits."""
    found = dot_type_of(inputs.q.dtype, inputs.kv_cache.dtype, device)
    return torch.bfloat16 if found.itemsize == 1 else found


def fits_tiles(latent: int, width: int) -> bool:
    """Return whether a latent part lies in four tiles without padding, beside a rope part."""
    return width > latent >= 4 * SMALLEST_TILE and latent == padded(latent)


def num_splits(inputs: SparseAttention, launch: Launch) -> int:
    """Return the splits of a row: as many as fill the device, of what the host knows."""
    rows, heads = inputs.q.shape[:2]
    programs = rows * -(-heads // launch.rows)
    most = -(-inputs.kv_indices.shape[0] // launch.columns)
    return max(1, min(launch.programs // programs, most, MAX_SPLITS))


def run_attention(inputs: SparseAttention, device: TritonDevice) -> None:
    """Run the attention; ``attention_reason`` must have returned None. Sync: none."""
    if inputs.q.shape[0] == 0:
        return
    launch = launch_of(inputs, device)
    splits = num_splits(inputs, launch)
    if splits == 1:
        _attend(inputs, device, launch, 1, inputs.out, inputs.lse)
        return
    rows, heads, latent = inputs.out.shape
    part = torch.empty(rows * splits, heads, latent, dtype=torch.float32, device=inputs.q.device)
    part_lse = torch.empty(rows * splits, heads, dtype=torch.float32, device=inputs.q.device)
    _attend(inputs, device, launch, splits, part, part_lse)
    merging = find_launch(device.arch, "merge")
    block = min(merging.columns, padded(latent))
    lse = inputs.lse
    merge[(rows, heads, triton.cdiv(latent, block))](
        part,
        part_lse,
        inputs.out,
        lse,
        inputs.sinks,
        heads,
        inputs.out.stride(0),
        inputs.out.stride(1),
        0 if lse is None else lse.stride(0),
        splits,
        latent_dim=latent,
        splits_padded=padded(splits, 1),
        block_v=block,
        num_warps=merging.warps,
    )


def _pack(inputs: SparseAttention, device: TritonDevice) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the entries without -1, each row from its old start on, and where the rows end now."""
    packed, ends = torch.empty_like(inputs.kv_indices), torch.empty_like(inputs.kv_indptr[1:])
    block = find_launch(device.arch, "map").columns
    pack_live[(len(ends),)](inputs.kv_indptr, inputs.kv_indices, packed, ends, block=block)
    return packed, ends


def _attend(
    inputs: SparseAttention,
    device: TritonDevice,
    launch: Launch,
    splits: int,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """Launch the attention over all splits."""
    rows, heads, width = inputs.q.shape
    latent, head_blocks = inputs.out.shape[2], triton.cdiv(heads, launch.rows)
    latent_padded, rope_padded = _padded_widths(inputs)
    kernel, ends, indices, shape = attend, inputs.kv_indptr[1:], inputs.kv_indices, {"latent_padded": latent_padded}
    if launch.tiled and fits_tiles(latent, width):
        kernel, shape = attend_tiled, {}
        if inputs.has_invalid:
            indices, ends = _pack(inputs, device)
    kernel[(rows * splits * head_blocks,)](
        inputs.q,
        inputs.kv_cache,
        inputs.kv_indptr,
        ends,
        indices,
        out,
        lse,
        inputs.sinks,
        inputs.q_scale,
        inputs.kv_scale,
        inputs.softmax_scale,
        heads,
        inputs.q.stride(0),
        inputs.q.stride(1),
        out.stride(0),
        out.stride(1),
        0 if lse is None else lse.stride(0),
        head_blocks,
        splits,
        kv_row=inputs.kv_cache.stride(0),
        latent_dim=latent,
        rope_dim=width - latent,
        rope_padded=rope_padded,
        dot_type=triton_type(attention_type(inputs, device)),
        partial=splits > 1,
        block_h=launch.rows,
        block_n=launch.columns,
        stages=launch.stages,
        num_warps=launch.warps,
        **shape,
    )
