from dataclasses import dataclass

import torch

from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MLAAttentionImpl,
)
from vllm.v1.attention.backends.split import split_decodes_and_prefills


class GoodMLASparseBackend(AttentionBackend):
    @staticmethod
    def get_impl_cls():
        return GoodMLASparseImpl

    @staticmethod
    def get_builder_cls() -> "type[GoodMLASparseMetadataBuilder]":
        return GoodMLASparseMetadataBuilder

    @classmethod
    def is_mla(cls) -> bool:
        return True


@dataclass
class GoodMLASparseMetadata(AttentionMetadata):
    num_actual_tokens: int
    num_decodes: int
    num_prefills: int
    num_decode_tokens: int
    block_table: torch.Tensor
    topk_tokens: int


class GoodMLASparseMetadataBuilder(AttentionMetadataBuilder[GoodMLASparseMetadata]):
    topk_tokens: int

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> GoodMLASparseMetadata:
        num_decodes, num_prefills, num_decode_tokens, _ = split_decodes_and_prefills(common_attn_metadata)
        return GoodMLASparseMetadata(
            num_actual_tokens=common_attn_metadata.num_actual_tokens,
            num_decodes=num_decodes,
            num_prefills=num_prefills,
            num_decode_tokens=num_decode_tokens,
            block_table=common_attn_metadata.block_table_tensor,
            topk_tokens=self.topk_tokens,
        )


class GoodMLASparseImpl(MLAAttentionImpl[GoodMLASparseMetadata]):
    is_sparse = True

    def forward_mqa(self, q, kv_cache, attn_metadata: GoodMLASparseMetadata, layer):
        return torch.ops.example.good_sparse(q, kv_cache, attn_metadata.block_table, attn_metadata.topk_tokens)
