"""The record that the ROCm sparse backend hands to the shared layer and to its attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mla_contract.contract import claims
from mla_contract.contract.persistent_work import WorkBuffers

if TYPE_CHECKING:
    from mla_contract.backends.rocm_sparse.prefill import SparsePrefill
    from mla_contract.contract.decode import DecodeMetadata


@dataclass(kw_only=True)
class SparseMetadata:
    """What sparse backends share: counts, core and sparse tiers. Arrays with a row for each token have kernel rows.

    Kernel rows are the rows of q that ``forward_mqa`` gets: the decode tokens while prefills attend densely, else all.
    """

    num_reqs: int
    num_actual_tokens: int
    num_decodes: int
    num_prefills: int
    num_decode_tokens: int
    query_start_loc: Tensor
    slot_mapping: Tensor
    max_query_len: int
    max_seq_len: int
    prefill: SparsePrefill | None
    decode: DecodeMetadata | None = None
    block_table: Tensor
    req_id_per_token: Tensor
    topk_tokens: int
    block_size: int
    prefill_max_seq_len: int
    seq_lens: Tensor
    decode_max_query_len: int

    @property
    def num_kernel_rows(self) -> int:
        """Rows of q that the attention takes."""
        return self.req_id_per_token.shape[0]


@dataclass(kw_only=True)
class RocmSparseMetadata(SparseMetadata):
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
