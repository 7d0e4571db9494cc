"""The attention op over ragged rows: selected slots lie one after the other, as aiter's paged tables say."""

from __future__ import annotations

import torch
from torch import Tensor

from mla_contract.backends.rocm_sparse.metadata import RocmSparseMetadata
from mla_contract.backends.sparse.attention import SelectedSlots, SparseAttentionOp


class RocmSparseAttention(SparseAttentionOp[RocmSparseMetadata]):
    """Attention over ragged slots, with the work that the builder planned.

    The leading ``min(position + 1, topk)`` positions of a row are taken to be valid, which the indexer ensures: a row
    with fewer candidates selects all, in order.
    """

    def _select(self, slots: Tensor, metadata: RocmSparseMetadata) -> SelectedSlots:
        """Return the slots packed into the record's table."""
        pack_slots(slots, metadata.paged_kv_indptr, metadata.paged_kv_indices)
        return SelectedSlots(metadata.paged_kv_indptr, metadata.paged_kv_indices, metadata.work)


def pack_slots(slots: Tensor, kv_indptr: Tensor, kv_indices: Tensor) -> None:
    """Write the leading slots of each row one after the other, as the prefix sum says.

    Args:
        slots: [rows, topk] int32.
        kv_indptr: [rows+1] int32; row i has ``kv_indptr[i + 1] - kv_indptr[i]`` entries, at most topk.
        kv_indices: [rows * topk] int32, written up to the last offset.

    Sync: none; shapes depend on shapes alone.
    """
    rows, topk = slots.shape
    if rows == 0:
        return
    entry = torch.arange(rows * topk, dtype=torch.int32, device=slots.device)
    owner = torch.searchsorted(kv_indptr[1:], entry, right=True).clamp_(max=rows - 1)
    column = (entry - kv_indptr[owner]).clamp_(max=topk - 1)
    torch.take(slots, owner * topk + column, out=kv_indices)
