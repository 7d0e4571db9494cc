"""Top-k of rows, and the way from positions to slots."""

from __future__ import annotations

import torch
from torch import Tensor

from mla_contract.contract.schema.provider import MapSlots, TopkRows

MAX_BLOCK_ELEMENTS = 1 << 20
"""Logits that are looked at together; small enough for a cache."""

GROUP = 64
"""Columns whose maximum is looked at first: the best columns lie in the groups with the best maxima."""


def topk_rows(inputs: TopkRows) -> None:
    """Select by value, ties by the smaller position; positions come in ascending order. Sync: reads device memory."""
    logits, topk = inputs.logits, inputs.topk
    columns = logits.shape[1]
    ends = inputs.ends.long().clamp(max=columns)
    starts = torch.zeros_like(ends) if inputs.starts is None else inputs.starts.long().clamp(min=0)
    lens = (ends - starts).clamp(min=0)
    rank = torch.arange(topk, device=logits.device)
    inputs.out.copy_(torch.where(rank < lens[:, None], rank, -1))
    long_rows = torch.nonzero(lens > topk).flatten()
    for rows in torch.split(long_rows, max(1, MAX_BLOCK_ELEMENTS // max(columns, 1))):
        if not len(rows):
            break
        low, high = int(starts[rows].min()), int(ends[rows].max())
        window = _windowed(logits[rows, low:high], starts[rows] - low, ends[rows] - low)
        chosen = _largest(window, starts[rows] - low, ends[rows] - low, topk)
        inputs.out[rows] = (chosen + low - starts[rows, None]).to(inputs.out.dtype)


def _windowed(values: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Write -inf outside the windows into ``values`` and return it; only columns where windows differ are touched."""
    for low, high in ((0, int(starts.max())), (int(ends.min()), values.shape[1])):
        column = torch.arange(low, high, device=values.device)
        outside = (column < starts[:, None]) | (column >= ends[:, None])
        values[:, low:high] = values[:, low:high].masked_fill(outside, -torch.inf)
    return values


def _largest(values: Tensor, starts: Tensor, ends: Tensor, topk: int) -> Tensor:
    """Return the ``topk`` best columns of each row, ascending; every row has more than ``topk`` columns inside."""
    peaks = torch.nn.functional.pad(values, (0, -values.shape[1] % GROUP), value=-torch.inf)
    peaks = peaks.view(len(values), -1, GROUP).amax(2)
    if bool(peaks.isnan().any()):
        values = torch.nan_to_num(values, nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
        return _largest(values, starts, ends, topk)
    groups = peaks.topk(min(topk, peaks.shape[1]), dim=1, sorted=False)
    column = groups.indices.sort(1).values[:, :, None] * GROUP + torch.arange(GROUP, device=values.device)
    column = column.flatten(1)
    candidates = values.gather(1, column.clamp(max=values.shape[1] - 1))
    candidates = candidates.masked_fill(column >= values.shape[1], -torch.inf)
    best = candidates.topk(topk, dim=1, sorted=False)
    least = best.values.amin(1)
    # Where the least value stands once, no tie decides; elsewhere positions must.
    elsewhere = (peaks == least[:, None]).sum(1) - (groups.values == least[:, None]).sum(1)
    single = ((candidates == least[:, None]).sum(1) == 1) & (elsewhere == 0)
    chosen = column.gather(1, best.indices).sort(1).values
    tied = torch.nonzero(~single).flatten()
    if len(tied):
        chosen[tied] = _with_ties(values[tied], least[tied, None], starts[tied], ends[tied], topk)
    return chosen


def _with_ties(values: Tensor, least: Tensor, starts: Tensor, ends: Tensor, topk: int) -> Tensor:
    """Return the columns above ``least`` and the first of those equal to it."""
    column = torch.arange(values.shape[1], device=values.device)
    inside = (column >= starts[:, None]) & (column < ends[:, None])
    above = values > least
    ties = (values == least) & inside
    ties &= ties.cumsum(1) <= topk - above.sum(1, keepdim=True)
    return torch.nonzero(above | ties)[:, 1].view(-1, topk)


def map_slots(inputs: MapSlots) -> None:
    """Map positions through the block table; what has no slot becomes -1."""
    position, table = inputs.positions.long(), inputs.block_table
    column = position // inputs.block_size
    known = (position >= 0) & (column < table.shape[1])
    rows = table[inputs.req_id_per_token.long()]
    block = rows.gather(1, column.clamp(0, max(table.shape[1] - 1, 0))).long()
    slot = block * inputs.block_size + position % inputs.block_size
    inputs.out.copy_(torch.where(known & (block >= 0), slot, -1))
