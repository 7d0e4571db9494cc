"""What the attention ops of sparse backends do alike: check rows, and map positions to slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from mla_contract.backends.kernels import registry
from mla_contract.backends.sparse.metadata import SparseRecord
from mla_contract.backends.sparse.workspace import plan_workspace, take
from mla_contract.contract.schema.provider import KernelProvider, MapSlots
from mla_contract.contract.schema.workspace import WorkspaceManager
from mla_contract.contract.step.facts import Facts
from mla_contract.runtime.check import validate_metadata

if TYPE_CHECKING:
    import torch

    from mla_contract.backends.sparse.config import SparseConfig


class SparseAttentionOp:
    """Base of an attention op; a backend adds ``forward_mqa``."""

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
