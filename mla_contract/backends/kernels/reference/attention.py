"""Sparse MLA attention over ragged slots, row by row.

Rows are grouped by their length rounded up to a power of two, which depends on the row alone: a row's result does not
change with the rows that are computed together with it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mla_contract.contract.schema.provider import SparseAttention

MAX_BLOCK_ELEMENTS = 1 << 23
"""Elements of gathered cache rows that are held at a time."""


def sparse_attention(inputs: SparseAttention) -> None:
    """Compute in float32 and round once, into ``out``. Sync: reads device memory."""
    bounds = inputs.kv_indptr.long()
    lens = bounds[1:] - bounds[:-1]
    inputs.out.zero_()
    if inputs.lse is not None:
        inputs.lse.fill_(-torch.inf)
    longest = int(lens.max()) if len(lens) else 0
    width, low = 1, 0
    while low < longest:
        rows = torch.nonzero((lens > low) & (lens <= width)).flatten()
        step = max(1, MAX_BLOCK_ELEMENTS // (width * inputs.q.shape[2]))
        for block in torch.split(rows, step):
            _attend(inputs, block, bounds[block], lens[block], width)
        low, width = width, 2 * width


def _attend(inputs: SparseAttention, rows: Tensor, first: Tensor, lens: Tensor, width: int) -> None:
    """Compute rows whose length is at most ``width``."""
    offset = torch.arange(width, device=rows.device)
    inside = offset < lens[:, None]
    entry = torch.where(inside, first[:, None] + offset, 0)
    slots = torch.where(inside, inputs.kv_indices[entry].long(), -1)
    live = slots >= 0
    kv = inputs.kv_cache[slots.clamp(min=0)].float().masked_fill_(~live[:, :, None], 0.0)
    scale = inputs.softmax_scale * _factor(inputs.q_scale) * _factor(inputs.kv_scale)
    scores = torch.bmm(inputs.q[rows].float(), kv.transpose(1, 2)) * scale
    scores.masked_fill_(~live[:, None], -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    if inputs.lse is not None:
        inputs.lse[rows] = lse
    total = lse
    if inputs.sinks is not None:
        total = torch.logaddexp(lse, inputs.sinks.float()[None])
    weights = torch.exp(scores - total[:, :, None]).masked_fill_(~live[:, None], 0.0)
    value = torch.bmm(weights, kv[:, :, : inputs.out.shape[2]]) * _factor(inputs.kv_scale)
    inputs.out[rows] = value.to(inputs.out.dtype)


def _factor(scale: Tensor | None) -> Tensor | float:
    """Return a scale as a factor."""
    return 1.0 if scale is None else scale.float().reshape(())
