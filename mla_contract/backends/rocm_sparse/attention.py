"""The attention op: selected positions become ragged slots, and one provider attends to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mla_contract.backends.kernels import registry
from mla_contract.backends.rocm_sparse.metadata import RocmSparseMetadata, SparseMetadata
from mla_contract.backends.rocm_sparse.workspace import plan_workspace, take
from mla_contract.contract.clauses.facts import Facts
from mla_contract.contract.provider import KernelProvider, MapSlots, SparseAttention
from mla_contract.contract.workspace import WorkspaceManager
from mla_contract.runtime.check import validate_metadata

if TYPE_CHECKING:
    from mla_contract.backends.rocm_sparse.config import SparseConfig


class SparseAttentionOp:
    """What both sparse backends' attention ops do alike: check rows, and map positions to slots."""

    def __init__(
        self, config: SparseConfig, manager: WorkspaceManager, providers: Sequence[KernelProvider] | None = None
    ) -> None:
        """Keep what every call needs.

        Args:
            config: The configuration.
            manager: Scratch memory, reserved by ``profile``.
            providers: Kernel providers to try; the registry's order by default.
        """
        self.config, self.manager, self.providers = config, manager, providers
        self._scratch = plan_workspace(config).attention

    def profile(self) -> None:
        """Reserve what ``forward_mqa`` will ask for."""
        take(self._scratch, self.manager)

    def _slots(self, q: Tensor, topk_indices: Tensor, metadata: SparseMetadata) -> Tensor:
        """Return the slot of each selected position: [rows, topk] int32, -1 where there is none.

        Raises:
            ContractError: The record describes other rows than q has; nothing has been computed then.
        """
        if q.shape[0] != metadata.num_kernel_rows or topk_indices.shape[0] < q.shape[0]:
            rows = min(q.shape[0], topk_indices.shape[0])
            validate_metadata(metadata, facts=Facts(query_rows=rows))
            raise ValueError(f"topk_indices has {topk_indices.shape[0]} rows, q has {q.shape[0]}")
        slots = take(self._scratch, self.manager)["topk_slots"][: q.shape[0]]
        registry.run(
            MapSlots(
                positions=topk_indices[: q.shape[0]],
                req_id_per_token=metadata.req_id_per_token,
                block_table=metadata.block_table,
                block_size=metadata.block_size,
                out=slots,
            ),
            self.providers,
        )
        return slots

    def _result(self, q: Tensor, out: Tensor | None) -> Tensor:
        """Return the array for the output."""
        if out is not None:
            return out
        return q.new_empty(q.shape[0], q.shape[1], self.config.value_width, dtype=self.config.out_dtype)


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
