"""What the attention ops of sparse backends do alike: check rows, map positions to slots, and attend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from torch import Tensor

from mla_contract.backends.kernels import registry
from mla_contract.backends.sparse.metadata import SparseRecord
from mla_contract.backends.sparse.workspace import plan_workspace, take
from mla_contract.contract.schema.persistent_work import WorkBuffers
from mla_contract.contract.schema.provider import KernelProvider, MapSlots, SparseAttention
from mla_contract.contract.schema.workspace import WorkspaceManager
from mla_contract.contract.step.facts import Facts
from mla_contract.runtime.check import validate_metadata

if TYPE_CHECKING:
    import torch

    from mla_contract.backends.sparse.config import SparseConfig

M = TypeVar("M", bound=SparseRecord)


class SelectedSlots(NamedTuple):
    """The slots of all rows, one row after the other.

    Attributes:
        kv_indptr: [rows+1] int32, prefix sum of the entries of each row.
        kv_indices: int32, at least as many as the last offset; -1 only without ``work``.
        work: Persistent work that was planned for these offsets; None where the kernel divides by itself.
    """

    kv_indptr: Tensor
    kv_indices: Tensor
    work: WorkBuffers | None = None


class SparseAttentionOp(ABC, Generic[M]):
    """Base of an attention op; a backend says how its kernels find the selected slots."""

    def __init__(
        self,
        config: SparseConfig,
        manager: WorkspaceManager,
        providers: Sequence[KernelProvider] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Keep what every call needs.

        Args:
            config: The configuration.
            manager: Scratch memory, reserved by ``profile``.
            providers: Kernel providers to try; the registry's order by default.
            device: Where the kernels run.
        """
        self.config, self.manager, self.providers, self.device = config, manager, providers, device
        self._scratch = plan_workspace(config).attention

    def profile(self) -> None:
        """Reserve what ``forward_mqa`` will ask for."""
        take(self._scratch, self.manager)

    def forward_mqa(
        self,
        q: Tensor,
        kv_cache: Tensor,
        topk_indices: Tensor,
        metadata: M,
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        sinks: Tensor | None = None,
        q_scale: Tensor | None = None,
        kv_scale: Tensor | None = None,
    ) -> Tensor:
        """Attend from each row to its selected positions.

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
        selected = self._select(self._slots(q, topk_indices, metadata), metadata)
        value = self._result(q, out)
        registry.run(
            SparseAttention(
                q=q,
                kv_cache=kv_cache.reshape(-1, kv_cache.shape[-1]),
                kv_indptr=selected.kv_indptr,
                kv_indices=selected.kv_indices,
                out=value,
                softmax_scale=self.config.softmax_scale,
                lse=lse,
                sinks=sinks,
                q_scale=q_scale,
                kv_scale=kv_scale,
                work=selected.work,
                # Work is planned for the offsets as they are: an entry that drops out would move them.
                has_invalid=selected.work is None,
            ),
            self.providers,
        )
        return value

    @abstractmethod
    def _select(self, slots: Tensor, metadata: M) -> SelectedSlots:
        """Return the slots as the kernels read them.

        Args:
            slots: [rows, topk] int32, -1 where there is no position.
            metadata: The record of this step.
        """

    def _slots(self, q: Tensor, topk_indices: Tensor, metadata: SparseRecord) -> Tensor:
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
