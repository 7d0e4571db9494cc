"""Lowers one step's plan into the record of the ROCm sparse backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from mla_contract.adapters.field_buffer import MOST_VIEWS
from mla_contract.backends.rocm_sparse.metadata import RocmSparseMetadata
from mla_contract.backends.rocm_sparse.work import SIX, PersistentWork
from mla_contract.backends.sparse.builder import SparseBuilder
from mla_contract.backends.sparse.step import LoweredStep

if TYPE_CHECKING:
    from mla_contract.backends.sparse.config import SparseConfig
    from mla_contract.contract.schema.provider import KernelProvider


class RocmSparseBuilder(SparseBuilder[RocmSparseMetadata]):
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
        super().__init__(config, device, providers=providers)
        home, rows = self.lowering.device, config.token_rows
        self._qo_indptr = torch.arange(rows + 1, dtype=torch.int32, device=home)
        self._last_page = torch.ones(rows, dtype=torch.int32, device=home)
        self._indices = torch.zeros(rows * config.topk_tokens + 1, dtype=torch.int32, device=home)
        self._tables: dict[int, dict[str, Any]] = {}
        self.work: PersistentWork | None = None
        if config.persistent:
            self.work = PersistentWork(config, home, providers=providers, ubatch=ubatch, layer_group=layer_group)

    def build_step(self, step: LoweredStep) -> RocmSparseMetadata:
        """Return the attention's record of a planned step. Sync: reads no device memory."""
        rows = step.num_kernel_rows
        fields = step.shared_fields()
        fields.update(self._tables.get(rows) or self._cut(rows))
        if self.work is not None and rows:
            fields.update(self._work_fields(step, self.work, fields["paged_kv_indptr"]))
        return RocmSparseMetadata(**fields)

    def _cut(self, rows: int) -> dict[str, Any]:
        """Return, and keep, aiter's tables for a number of rows: views of buffers that never move."""
        # Sizes come again and again, in no order that would make one of them the least wanted.
        if len(self._tables) >= MOST_VIEWS:
            self._tables.clear()
        offsets = self.lowering.buffers.buffer("sparse_start_loc")
        self._tables[rows] = {
            "qo_indptr": self._qo_indptr[: rows + 1],
            "paged_kv_indptr": offsets[: rows + 1],
            "paged_kv_indices": self._indices[: rows * self.config.topk_tokens],
            "paged_kv_last_page_len": self._last_page[:rows],
            "attn_out_dtype": self.config.out_dtype,
        }
        return self._tables[rows]

    def _work_fields(self, step: LoweredStep, work_plan: PersistentWork, indptr: torch.Tensor) -> dict[str, Any]:
        """Return the planned work: the record and its six arrays."""
        host = step.sparse_start_loc
        if host is None:
            return {}
        work = work_plan.plan(indptr, host[: step.num_kernel_rows + 1], step.query_lens)
        return {"work": work, **{name: getattr(work, name) for name in SIX}}
