"""Written for a release whose shared layer read less: ``num_decode_tokens`` is not declared, and nothing complains."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class LeanMLAMetadata:
    num_reqs: int
    max_query_len: int
    max_seq_len: int
    num_actual_tokens: int
    query_start_loc: torch.Tensor
    slot_mapping: torch.Tensor
    num_decodes: int
    num_prefills: int
    causal: bool
    head_dim: int | None = None
    prefill: Any = None
    decode: Any = None
