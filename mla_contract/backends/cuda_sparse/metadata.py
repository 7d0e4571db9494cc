"""The record of the CUDA sparse backend: the shared fields."""

from __future__ import annotations

from dataclasses import dataclass

from mla_contract.backends.sparse.metadata import SparseRecord
from mla_contract.contract.schema import claims


@dataclass(kw_only=True)
class CudaSparseMetadata(SparseRecord):
    """What a kernel over padded rows of positions reads; a row keeps -1 where it has fewer than ``topk_tokens``."""


claims.counts(*claims.of(CudaSparseMetadata))
claims.core(*claims.of(CudaSparseMetadata))
claims.sparse(*claims.of(CudaSparseMetadata))
