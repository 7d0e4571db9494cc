"""Logits and top-k of the lightning indexer: why they cannot run, and the launches."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from mla_contract.backends.kernels.triton import logits_kernels, topk_kernels
from mla_contract.backends.kernels.triton.checks import (
    array_reason,
    cache_reason,
    packed_reason,
    page_views,
    type_reason,
)
from mla_contract.backends.kernels.triton.device import SMALLEST_TILE, TritonDevice, dot_type_of, padded, triton_type
from mla_contract.backends.kernels.triton.launches import Launch, find_launch, logits_class
from mla_contract.contract.schema.provider import ChunkLogits, KeyLayout, PagedLogits, TopkRows, padded_columns

WIDE = 4
"""Blocks of columns that one program selects from sooner than several launches do, in top-k."""

MAX_HEADS, MAX_DIM = 128, 256
"""Most heads of a query and most elements of a key: one tile holds all of both."""

MAX_QUERY_BYTES = 64 * 1024
"""Most bytes of that tile: what AMD's gfx942 has of shared memory."""


def chunk_reason(inputs: ChunkLogits, device: TritonDevice) -> str | None:
    """Return why a chunk cannot be scored, or None. Sync: none."""
    reason = _shape_reason(inputs.q, inputs.k.dtype, device) or type_reason("q", inputs.q.dtype, device)
    reason = reason or type_reason("k", inputs.k.dtype, device)
    reason = reason or array_reason(torch.int32, starts=inputs.starts, ends=inputs.ends)
    reason = reason or array_reason(torch.float32, k_scale=inputs.k_scale, weights=inputs.weights)
    return reason or packed_reason(q=inputs.q, k=inputs.k)


def run_chunk(inputs: ChunkLogits, device: TritonDevice) -> Tensor:
    """Return the chunk's logits; outside the windows they are not initialised. Sync: none."""
    rows, heads, dim = inputs.q.shape
    keys = inputs.k.shape[0]
    out = torch.empty(rows, padded_columns(keys), dtype=torch.float32, device=inputs.q.device)[:, :keys]
    if rows == 0 or keys == 0:
        return out
    dot_type = dot_type_of(inputs.q.dtype, inputs.k.dtype, device)
    launch = find_launch(device.arch, logits_class("chunk", dot_type))
    heads_padded = padded(heads, 1)
    tokens = _tokens(launch, heads_padded)
    blocks = triton.cdiv(rows, tokens)
    spans = max(1, min(launch.programs // blocks, triton.cdiv(keys, 4 * launch.columns)))
    columns = triton.cdiv(triton.cdiv(keys, spans), launch.columns) * launch.columns
    logits_kernels.chunk_logits[(blocks, triton.cdiv(keys, columns))](
        inputs.q,
        inputs.k,
        None if inputs.k_scale is None else inputs.k_scale.reshape(-1),
        inputs.weights,
        inputs.starts,
        inputs.ends,
        out,
        rows,
        keys,
        inputs.q.stride(0),
        inputs.q.stride(1),
        inputs.k.stride(0),
        inputs.weights.stride(0),
        out.stride(0),
        columns,
        num_heads=heads,
        heads_padded=heads_padded,
        head_dim=dim,
        dim_padded=padded(dim, 32),
        dot_type=triton_type(dot_type),
        tokens=tokens,
        block_n=launch.columns,
        stages=launch.stages,
        num_warps=launch.warps,
        enable_fp_fusion=False,
    )
    return out


def paged_reason(inputs: PagedLogits, device: TritonDevice) -> str | None:
    """Return why cached keys cannot be scored, or None. Sync: none."""
    key_type = inputs.format.fp8_dtype or inputs.cache.dtype
    reason = _shape_reason(inputs.q, key_type, device) or type_reason("q", inputs.q.dtype, device)
    reason = reason or cache_reason(inputs.cache, inputs.format, device)
    if reason is None and inputs.format.fp8_dtype is not None and inputs.format.groups > 1:
        reason = f"format.group={inputs.format.group}: the kernel takes one scale for a key of {inputs.q.shape[3]}"
    if reason is None and inputs.context_lens.dim() != 1:
        reason = "context_lens: the kernel takes one length for each request"
    reason = reason or array_reason(torch.int32, context_lens=inputs.context_lens, block_table=inputs.block_table)
    reason = reason or array_reason(torch.float32, weights=inputs.weights, out=inputs.out)
    return reason or packed_reason(q=inputs.q)


def run_paged(inputs: PagedLogits, device: TritonDevice) -> None:
    """Write the logits of every decode row, up to the request's length. Sync: none."""
    requests, next_n, heads, dim = inputs.q.shape
    if requests == 0:
        return
    values, scales = page_views(inputs.cache, inputs.format)
    dot_type = dot_type_of(inputs.q.dtype, values.dtype, device)
    launch = find_launch(device.arch, logits_class("paged", dot_type))
    heads_padded = padded(heads, 1)
    tokens = min(_tokens(launch, heads_padded), padded(next_n, max(1, SMALLEST_TILE // heads_padded)))
    groups = triton.cdiv(next_n, tokens)
    spans = triton.cdiv(min(inputs.max_model_len, inputs.out.shape[1]), 4 * launch.columns)
    spans = max(1, min(launch.programs // (requests * groups), spans))
    logits_kernels.paged_logits[(spans, requests, groups)](
        inputs.q,
        values,
        scales,
        inputs.weights,
        inputs.context_lens,
        inputs.block_table,
        inputs.out,
        inputs.q.stride(0),
        inputs.q.stride(1),
        inputs.q.stride(2),
        inputs.weights.stride(0),
        inputs.block_table.stride(0),
        values.stride(0),
        0 if scales is None else scales.stride(0),
        inputs.out.stride(0),
        min(inputs.max_model_len, inputs.out.shape[1]),
        inputs.cache.shape[1],
        next_n=next_n,
        num_heads=heads,
        heads_padded=heads_padded,
        head_dim=dim,
        dim_padded=padded(dim, 32),
        shuffled=inputs.format.layout is KeyLayout.SHUFFLE,
        dot_type=triton_type(dot_type),
        tokens=tokens,
        block_n=launch.columns,
        stages=launch.stages,
        num_warps=launch.warps,
        enable_fp_fusion=False,
    )


def topk_reason(inputs: TopkRows, device: TritonDevice) -> str | None:
    """Return why the best columns cannot be selected, or None. Sync: none."""
    reason = array_reason(torch.int32, starts=inputs.starts, ends=inputs.ends, out=inputs.out)
    if reason is None and not inputs.out.is_contiguous():
        reason = f"out has strides {inputs.out.stride()}: it must be contiguous"
    return reason or array_reason(torch.float32, logits=inputs.logits)


def run_topk(inputs: TopkRows, device: TritonDevice) -> None:
    """Select the best columns of each row; ties always go to the smaller position. Sync: none."""
    rows, columns = inputs.logits.shape
    if rows == 0 or inputs.topk == 0:
        return
    launch = find_launch(device.arch, "topk")
    parts = min(launch.programs // rows, triton.cdiv(columns, launch.columns))
    if parts > 1 and columns > WIDE * launch.columns:
        _run_shared(inputs, launch, parts)
        return
    topk_kernels.topk_rows[(rows,)](
        inputs.logits,
        inputs.starts,
        inputs.ends,
        columns,
        inputs.logits.stride(0),
        inputs.out,
        topk=inputs.topk,
        topk_padded=padded(inputs.topk, 1),
        block=launch.columns,
        num_warps=launch.warps,
    )


def _run_shared(inputs: TopkRows, launch: Launch, parts: int) -> None:
    """Select from few wide rows: programs share each, and what they must know of one another ends a launch."""
    rows, columns = inputs.logits.shape
    given = inputs.logits, inputs.starts, inputs.ends, columns, inputs.logits.stride(0)
    shape = {"topk": inputs.topk, "block": launch.columns, "num_warps": launch.warps}
    scratch = inputs.out.new_empty(2, rows, parts, topk_kernels.TABLE.value)
    earlier: Tensor | None = None
    for step in range(4):
        tables = scratch[step % 2]
        topk_kernels.count_parts[(rows, parts)](*given, earlier, tables, 24 - 8 * step, **shape)
        earlier = tables
    topk_kernels.collect_parts[(rows, parts)](*given, earlier, inputs.out, topk_padded=padded(inputs.topk, 1), **shape)


def _tokens(launch: Launch, heads_padded: int) -> int:
    """Return the tokens whose heads share a tile."""
    return max(1, max(launch.rows, SMALLEST_TILE) // heads_padded)


def _shape_reason(q: Tensor, key_type: torch.dtype, device: TritonDevice) -> str | None:
    """Return why queries do not fit a tile."""
    heads, dim = q.shape[-2:]
    if not 1 <= heads <= MAX_HEADS or not 1 <= dim <= MAX_DIM:
        return f"{heads} heads of {dim}: at most {MAX_HEADS} heads of {MAX_DIM} elements"
    dot_type = dot_type_of(q.dtype, key_type, device)
    size = padded(heads, 1) * padded(dim, 32) * dot_type.itemsize
    if size > MAX_QUERY_BYTES:
        return f"{heads} heads of {dim} in {dot_type} take {size} bytes: a tile has at most {MAX_QUERY_BYTES}"
    return None
