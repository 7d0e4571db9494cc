"""The fields that every sparse backend hands to the shared layer and to its attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from mla_contract.contract.schema import claims

if TYPE_CHECKING:
    from mla_contract.backends.sparse.prefill import SparsePrefill
    from mla_contract.contract.schema.decode import DecodeMetadata


@dataclass(kw_only=True)
class SparseRecord:
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


claims.counts(*claims.of(SparseRecord))
claims.core(*claims.of(SparseRecord))
claims.sparse(*claims.of(SparseRecord))
