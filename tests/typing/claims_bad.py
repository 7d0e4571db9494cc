# Backends that break the contract; each marker states what a checker must report on its line.
from dataclasses import dataclass

import torch

from mla_contract.contract.schema.claims import aiter, core, counts, of, sparse


@dataclass
class LacksTheSplit:
    num_reqs: int
    num_actual_tokens: int


counts(*of(LacksTheSplit))  # E: expected "HasNumDecodes"  # E: expected "HasNumPrefills"  # E: expected "HasNumDecodeTokens"


@dataclass(frozen=True)
class LacksOne:
    num_reqs: int
    num_actual_tokens: int
    num_decodes: int
    num_prefills: int


counts(*of(LacksOne))  # E: expected "HasNumDecodeTokens"


@dataclass
class WrongType:
    num_reqs: int
    num_actual_tokens: int
    num_decodes: int | None
    num_prefills: torch.Tensor
    num_decode_tokens: int


counts(*of(WrongType))  # E: expected "HasNumDecodes"  # E: expected "HasNumPrefills"


@dataclass
class OldSparse:
    query_start_loc: torch.Tensor
    slot_mapping: torch.Tensor
    max_query_len: int
    max_seq_len: int
    block_table: torch.Tensor
    req_id_per_token: list[int]
    block_size: int = 1
    topk_tokens: int = 2048


core(*of(OldSparse))  # E: expected "HasPrefill"  # E: expected "HasDecode"
sparse(*of(OldSparse))  # E: expected "HasReqIdPerToken"  # E: expected "HasPrefillMaxSeqLen"  # E: expected "HasSeqLens"  # E: expected "HasDecodeMaxQueryLen"


@dataclass
class HalfAPlan:
    qo_indptr: torch.Tensor
    paged_kv_indptr: torch.Tensor
    paged_kv_indices: torch.Tensor
    paged_kv_last_page_len: torch.Tensor
    attn_out_dtype: torch.dtype
    work_meta_data: torch.Tensor | None = None
    work_indptr: torch.Tensor | None = None


aiter(*of(HalfAPlan))  # E: expected "AiterWork"
