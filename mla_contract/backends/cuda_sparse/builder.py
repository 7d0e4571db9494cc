"""Lowers one step's plan into the record of the CUDA sparse backend."""

from __future__ import annotations

from mla_contract.backends.cuda_sparse.metadata import CudaSparseMetadata
from mla_contract.backends.sparse.builder import SparseBuilder
from mla_contract.backends.sparse.step import LoweredStep


class CudaSparseBuilder(SparseBuilder[CudaSparseMetadata]):
    """Builds the record of each step in buffers whose addresses never change; its kernels plan no work ahead."""

    def build_step(self, step: LoweredStep) -> CudaSparseMetadata:
        """Return the attention's record of a planned step. Sync: reads no device memory."""
        return CudaSparseMetadata(**step.shared_fields())
