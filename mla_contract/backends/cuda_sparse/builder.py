"""Lowers one step's plan into the record of the CUDA sparse backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mla_contract.backends.cuda_sparse.metadata import CudaSparseMetadata
from mla_contract.backends.sparse.builder import SparseBuilder
from mla_contract.backends.sparse.step import Step

if TYPE_CHECKING:
    import torch

    from mla_contract.backends.sparse.config import SparseConfig
    from mla_contract.contract.schema.provider import KernelProvider


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

    def build_step(self, step: Step) -> CudaSparseMetadata:
        """Return the attention's record of a planned step. Sync: reads no device memory."""
        return CudaSparseMetadata(**step.shared_fields())
