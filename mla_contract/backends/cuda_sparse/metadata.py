"""The record of the CUDA sparse backend: the shared fields, and a schedule with an entry for each request."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mla_contract.backends.sparse.metadata import SparseMetadata
from mla_contract.contract import claims


@dataclass(kw_only=True)
class CudaSparseMetadata(SparseMetadata):
    """What a kernel over padded rows of positions reads; a row keeps -1 where it has fewer than ``topk_tokens``.

    Attributes:
        schedule_start_loc: [num_reqs+1] int32, prefix sum of the key blocks that each request's rows read together.
    """

    schedule_start_loc: Tensor


claims.counts(*claims.of(CudaSparseMetadata))
claims.core(*claims.of(CudaSparseMetadata))
claims.sparse(*claims.of(CudaSparseMetadata))
