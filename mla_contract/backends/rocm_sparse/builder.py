"""Lowers one step's plan into the record of the ROCm sparse backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from mla_contract.backends.rocm_sparse.indexer_metadata import SparseIndexerMetadata
from mla_contract.backends.rocm_sparse.lowering import Lowering, Step
from mla_contract.backends.rocm_sparse.metadata import RocmSparseMetadata
from mla_contract.backends.rocm_sparse.work import SIX, PersistentWork

if TYPE_CHECKING:
    from mla_contract.backends.rocm_sparse.config import SparseConfig
    from mla_contract.contract.batch import CommonBatch
    from mla_contract.contract.provider import KernelProvider


class RocmSparseBuilder:
    """Builds the record of each step in buffers whose addresses never change.

    Attributes:
        config: The configuration.
        lowering: Plans and copies; the indexer's record is made of the same step.
        work: Persistent work; None where the configuration plans none.
    """

    def __init__(
        self,
        config: SparseConfig,
        device: torch.device | str = "cpu",
        *,
        providers: Sequence[KernelProvider] | None = None,
        ubatch: int = 0,
        layer_group: str = "",
    ) -> None:
        """Allocate all buffers.

        Args:
            config: The configuration.
            device: Where the kernels run.
            providers: Kernel providers to try; the registry's order by default.
            ubatch: The micro-batch that this builder serves.
            layer_group: The layers that share its records.

        Raises:
            NoProvider: Work is to be planned, and no provider does.
        """
        self.config = config
        self.lowering = Lowering(config, device)
        home, rows = self.lowering.device, config.token_rows
        self._qo_indptr = torch.arange(rows + 1, dtype=torch.int32, device=home)
        self._last_page = torch.ones(rows, dtype=torch.int32, device=home)
        self._indices = torch.zeros(rows * config.topk_tokens + 1, dtype=torch.int32, device=home)
        self.work: PersistentWork | None = None
        if config.persistent:
            self.work = PersistentWork(config, home, providers=providers, ubatch=ubatch, layer_group=layer_group)

    def build(self, batch: CommonBatch) -> RocmSparseMetadata:
        """Return the attention's record of a batch.

        Raises:
            InvalidBatch: The batch cannot be planned, or exceeds the buffers.

        Sync: reads no device memory.
        """
        return self.build_step(self.lowering.step(batch))

    def build_pair(self, batch: CommonBatch) -> tuple[RocmSparseMetadata, SparseIndexerMetadata]:
        """Return the records of attention and indexer, made of one plan. Sync: reads no device memory."""
        step = self.lowering.step(batch)
        return self.build_step(step), self.lowering.indexer(step)

    def build_step(self, step: Step) -> RocmSparseMetadata:
        """Return the attention's record of a planned step. Sync: reads no device memory."""
        rows = step.num_kernel_rows
        indptr = step.lowered["sparse_start_loc"][: rows + 1]
        return RocmSparseMetadata(
            **step.shared_fields(self.config),
            **self._work_fields(step, indptr),
            qo_indptr=self._qo_indptr[: rows + 1],
            paged_kv_indptr=indptr,
            paged_kv_indices=self._indices[: rows * self.config.topk_tokens],
            paged_kv_last_page_len=self._last_page[:rows],
            attn_out_dtype=self.config.out_dtype,
        )

    def _work_fields(self, step: Step, indptr: torch.Tensor) -> dict[str, Any]:
        """Return the planned work: the record and its six arrays; nothing where none is planned."""
        host = step.plan.sparse_start_loc
        if self.work is None or host is None or step.num_kernel_rows == 0:
            return {}
        work = self.work.plan(indptr, host[: step.num_kernel_rows + 1], step.plan.shape.query_lens)
        return {"work": work, **{name: getattr(work, name) for name in SIX}}
