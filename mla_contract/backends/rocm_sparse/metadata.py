"""The record that the ROCm sparse backend hands to the shared layer and to its attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mla_contract.backends.sparse.metadata import SparseRecord
from mla_contract.contract.schema import claims
from mla_contract.contract.schema.persistent_work import WorkBuffers


@dataclass(kw_only=True)
class RocmSparseMetadata(SparseRecord):
    """The shared fields, aiter's paged tables with a row for each token, and the persistent work.

    Attributes:
        work: The work with its configuration, as kernel providers take it; the six arrays are its own.
    """

    qo_indptr: Tensor
    paged_kv_indptr: Tensor
    paged_kv_indices: Tensor
    paged_kv_last_page_len: Tensor
    attn_out_dtype: torch.dtype
    work: WorkBuffers | None = None
    work_meta_data: Tensor | None = None
    work_indptr: Tensor | None = None
    work_info_set: Tensor | None = None
    reduce_indptr: Tensor | None = None
    reduce_final_map: Tensor | None = None
    reduce_partial_map: Tensor | None = None


claims.counts(*claims.of(RocmSparseMetadata))
claims.core(*claims.of(RocmSparseMetadata))
claims.sparse(*claims.of(RocmSparseMetadata))
claims.aiter(*claims.of(RocmSparseMetadata))
