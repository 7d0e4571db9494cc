"""The attention op: selected positions become ragged slots, and one provider attends to them."""

from __future__ import annotations

import torch
from torch import Tensor

from mla_contract.backends.kernels import registry
from mla_contract.backends.rocm_sparse.metadata import RocmSparseMetadata
from mla_contract.backends.sparse.attention import SparseAttentionOp
from mla_contract.contract.schema.provider import SparseAttention


class RocmSparseAttention(SparseAttentionOp):
    """Attention over ragged slots, with the work that the builder planned."""

    def forward_mqa(
        self,
        q: Tensor,
        kv_cache: Tensor,
        topk_indices: Tensor,
        metadata: RocmSparseMetadata,
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        sinks: Tensor | None = None,
        q_scale: Tensor | None = None,
        kv_scale: Tensor | None = None,
    ) -> Tensor:
        """Attend from each row to its selected positions.

        The leading ``min(position + 1, topk)`` positions of a row are taken to be valid, which the indexer ensures:
        a row with fewer candidates selects all, in order.

        Args:
            q: [rows, heads, width], exactly the rows that the record describes.
            kv_cache: Cache, [slots, width] or [blocks, block_size, width].
            topk_indices: [at least rows, topk] int32, request-local positions, -1 pads.
            metadata: The record of this step.
            out: [rows, heads, value_width]; made when None.
            lse: [rows, heads] float32, natural logarithm; written when given.
            sinks: [heads] float32.
            q_scale: [1] float32, of quantised queries.
            kv_scale: [1] float32, of a quantised cache.

        Returns:
            The output; rows without a key are 0.

        Raises:
            ContractError: The record describes other rows than q has.
            NoProvider: No provider can run the inputs.

        Sync: none of its own.
        """
        slots = self._slots(q, topk_indices, metadata)
        pack_slots(slots, metadata.paged_kv_indptr, metadata.paged_kv_indices)
        value = self._result(q, out)
        registry.run(
            SparseAttention(
                q=q,
                kv_cache=kv_cache.reshape(-1, kv_cache.shape[-1]),
                kv_indptr=metadata.paged_kv_indptr,
                kv_indices=metadata.paged_kv_indices,
                out=value,
                softmax_scale=self.config.softmax_scale,
                lse=lse,
                sinks=sinks,
                q_scale=q_scale,
                kv_scale=kv_scale,
                work=metadata.work,
                has_invalid=metadata.work is None,
            ),
            self.providers,
        )
        return value


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
