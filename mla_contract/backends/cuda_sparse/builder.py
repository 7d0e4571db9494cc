"""Lowers one step's plan into the record of the CUDA sparse backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mla_contract.backends.cuda_sparse.metadata import CudaSparseMetadata
from mla_contract.backends.sparse.builder import SparseBuilder
from mla_contract.backends.sparse.step import Step

if TYPE_CHECKING:
    from mla_contract.backends.sparse.config import SparseConfig
    from mla_contract.contract.provider import KernelProvider

KEY_BLOCK = 64
"""Keys that a kernel reads at a time."""


class CudaSparseBuilder(SparseBuilder[CudaSparseMetadata]):
    """Builds the record of each step in buffers whose addresses never change."""

    def __init__(
        self,
        config: SparseConfig,
        device: torch.device | str = "cpu",
        *,
        providers: Sequence[KernelProvider] | None = None,
    ) -> None:
        """Allocate all buffers; no kernel plans work ahead, so providers are not asked."""
        super().__init__(config, device)
        rows = max(config.max_num_seqs, config.max_capture_size) + 1
        self._schedule = torch.zeros(rows, dtype=torch.int32, device=self.lowering.device)

    def build_step(self, step: Step) -> CudaSparseMetadata:
        """Return the attention's record of a planned step. Sync: reads no device memory."""
        return CudaSparseMetadata(**step.shared_fields(), schedule_start_loc=self._scheduled(step))

    def _scheduled(self, step: Step) -> Tensor:
        """Return the prefix sum of key blocks: the plan's row offsets at the ends of each request, in blocks."""
        offsets = step.lowered["sparse_start_loc"]
        ends = offsets[step.batch.query_start_loc.clamp(max=step.num_kernel_rows)]
        blocks = (ends[1:] - ends[:-1] + KEY_BLOCK - 1) // KEY_BLOCK
        out = self._schedule[: len(ends)]
        torch.cumsum(blocks, 0, dtype=torch.int32, out=out[1:])
        return out
