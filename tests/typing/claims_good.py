# Backends that keep the contract; a checker must be silent about this file.
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mla_contract.contract.schema.claims import aiter, core, counts, of, sparse


@dataclass
class PlainDataclass:
    num_reqs: int
    num_actual_tokens: int
    num_decodes: int = 0
    num_prefills: int = 0
    num_decode_tokens: int = 0


counts(*of(PlainDataclass))


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenDataclass:
    num_reqs: int
    num_actual_tokens: int
    num_decodes: int
    num_prefills: int
    num_decode_tokens: int


counts(*of(FrozenDataclass))


class Tuple(NamedTuple):
    num_reqs: int
    num_actual_tokens: int
    num_decodes: int
    num_prefills: int
    num_decode_tokens: int


counts(*of(Tuple))


class AllDecodes:
    """Derives the split instead of storing it."""

    num_reqs: int
    num_actual_tokens: int
    num_prefills = 0

    @property
    def num_decodes(self) -> int:
        return self.num_reqs

    @property
    def num_decode_tokens(self) -> int:
        return self.num_actual_tokens


counts(*of(AllDecodes))


@dataclass
class Sparse(PlainDataclass):
    query_start_loc: torch.Tensor = torch.empty(0)
    slot_mapping: torch.Tensor = torch.empty(0)
    max_query_len: int = 0
    max_seq_len: int = 0
    prefill: None = None
    decode: None = None
    block_table: torch.Tensor = torch.empty(0)
    req_id_per_token: torch.Tensor = torch.empty(0)
    topk_tokens: int = 2048
    block_size: int = 1
    prefill_max_seq_len: int = 0
    seq_lens: torch.Tensor | None = None
    decode_max_query_len: int = 0


counts(*of(Sparse))
core(*of(Sparse))
sparse(*of(Sparse))


@dataclass
class Aiter(Sparse):
    qo_indptr: torch.Tensor | None = None
    paged_kv_indptr: torch.Tensor | None = None
    paged_kv_indices: torch.Tensor | None = None
    paged_kv_last_page_len: torch.Tensor | None = None
    attn_out_dtype: torch.dtype | None = None
    work_meta_data: torch.Tensor | None = None
    work_indptr: torch.Tensor | None = None
    work_info_set: torch.Tensor | None = None
    reduce_indptr: torch.Tensor | None = None
    reduce_final_map: torch.Tensor | None = None
    reduce_partial_map: torch.Tensor | None = None


aiter(*of(Aiter))
