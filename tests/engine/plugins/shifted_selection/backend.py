"""The ROCm sparse backend, reading the shared selection one row off."""

from __future__ import annotations

from typing import Any

from mla_contract.backends.vllm.backend import RocmSparse
from mla_contract.backends.vllm.impl import RocmSparseImpl


class ShiftedImpl(RocmSparseImpl):
    """Rows of the selection are rolled by one; metadata and kernels are right."""

    def forward_mqa(self, q: Any, kv_c_and_k_pe_cache: Any, attn_metadata: Any, layer: Any) -> Any:
        """Attend with the selection of the row before."""
        rows = attn_metadata.num_kernel_rows
        buffer = self.topk_indices_buffer
        right = buffer[:rows].clone()
        buffer[:rows] = right.roll(1, 0)
        try:
            return super().forward_mqa(q, kv_c_and_k_pe_cache, attn_metadata, layer)
        finally:
            buffer[:rows] = right


class ShiftedSparse(RocmSparse):
    """Has that impl."""

    @staticmethod
    def get_impl_cls() -> type[ShiftedImpl]:
        """Return the impl."""
        return ShiftedImpl
