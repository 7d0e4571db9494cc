from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch


class AttentionBackend(ABC):
    @staticmethod
    @abstractmethod
    def get_builder_cls() -> "type[AttentionMetadataBuilder]": ...

    @classmethod
    def is_mla(cls) -> bool:
        return False


class AttentionMetadata:
    """What one batch needs of one attention layer."""


@dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor


M = TypeVar("M", bound=AttentionMetadata)


class AttentionMetadataBuilder(ABC, Generic[M]):
    @abstractmethod
    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False) -> M:
        raise NotImplementedError


class MLAAttentionImpl(ABC, Generic[M]):
    is_sparse: ClassVar[bool] = False

    @abstractmethod
    def forward_mqa(self, q: torch.Tensor, kv_cache: torch.Tensor, attn_metadata: M, layer: object) -> torch.Tensor:
        raise NotImplementedError
