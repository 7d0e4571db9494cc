"""Kernel tables from the caller's: no -1, no empty row, and no device read; shapes depend on shapes alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def compact(kv_indptr: Tensor, kv_indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return tables without the -1 entries; rows may become empty. Sync: none."""
    capacity = kv_indices.numel()
    entry = torch.arange(capacity, device=kv_indices.device)
    live = (entry < kv_indptr[-1]) & (kv_indices >= 0)
    before = pad(torch.cumsum(live, 0), (1, 0))
    target = torch.where(live, before[:-1], capacity)
    kept = torch.zeros(capacity + 1, dtype=torch.int32, device=kv_indices.device)
    kept.scatter_(0, target, kv_indices)
    return before[kv_indptr.long()].int(), kept[:capacity]


def safe_indptr(kv_indptr: Tensor) -> Tensor:
    """Return offsets in which every empty row has one entry: no kernel can be trusted with an empty row. Sync: none."""
    lens = (kv_indptr[1:] - kv_indptr[:-1]).clamp(min=1)
    return pad(torch.cumsum(lens, 0, dtype=torch.int32), (1, 0))


def spread(kv_indptr: Tensor, kv_indices: Tensor, safe: Tensor) -> Tensor:
    """Return the entries laid out for ``safe_indptr(kv_indptr)``: slot 0 stands in for the entry of an empty row.

    What that row yields is thrown away, whatever the slot holds. Sync: none.
    """
    rows = len(safe) - 1
    capacity = kv_indices.numel() + rows
    if kv_indices.numel() == 0:
        return torch.zeros(capacity, dtype=torch.int32, device=safe.device)
    entry = torch.arange(capacity, device=safe.device)
    row = torch.searchsorted(safe[1:].long(), entry, right=True).clamp(max=rows - 1)
    source = kv_indptr[row] + entry - safe[row]
    live = source < kv_indptr[row + 1]
    return torch.where(live, kv_indices[source.clamp(max=kv_indices.numel() - 1)], 0).int()


def pad_heads(q: Tensor, heads: int) -> Tensor:
    """Return ``q``, [rows, n, width], with its heads repeated up to ``heads``; the first n stay where they are."""
    if q.shape[1] == heads:
        return q
    return q.index_select(1, torch.arange(heads, device=q.device) % q.shape[1])
