from dataclasses import dataclass

import torch

from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MLAAttentionImpl,
)


class LeanMLASparseBackend(AttentionBackend):
    @staticmethod
    def get_impl_cls():
        return LeanMLASparseImpl

    @staticmethod
    def get_builder_cls() -> "type[LeanMLASparseMetadataBuilder]":
        return LeanMLASparseMetadataBuilder

    @classmethod
    def is_mla(cls) -> bool:
        return True


@dataclass
class LeanMLASparseMetadata(AttentionMetadata):
    num_actual_tokens: int
    num_decodes: int
    block_table: torch.Tensor
    topk_tokens: int
    num_prefills: int = 0


class LeanMLASparseMetadataBuilder(AttentionMetadataBuilder[LeanMLASparseMetadata]):
    topk_tokens: int

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> LeanMLASparseMetadata:
        num_decodes, _, _, _ = lean_split_decodes_and_prefills(common_attn_metadata)
        return LeanMLASparseMetadata(
            num_actual_tokens=common_attn_metadata.num_actual_tokens,
            num_decodes=num_decodes,
            block_table=common_attn_metadata.block_table_tensor,
            topk_tokens=self.topk_tokens,
        )


class LeanMLASparseImpl(MLAAttentionImpl[LeanMLASparseMetadata]):
    is_sparse = True

    def forward_mqa(self, q, kv_cache, attn_metadata: LeanMLASparseMetadata, layer):
        return torch.ops.example.lean_sparse(q, kv_cache, attn_metadata.block_table, attn_metadata.topk_tokens)


def lean_split_decodes_and_prefills(
    common_attn_metadata: CommonAttentionMetadata, decode_threshold: int = 1
) -> tuple[int, int, int, int]:
    num_reqs = common_attn_metadata.num_reqs
    num_tokens = common_attn_metadata.num_actual_tokens
    start_loc = common_attn_metadata.query_start_loc_cpu
    if common_attn_metadata.max_query_len <= decode_threshold:
        return num_reqs, 0, num_tokens, 0
    num_decodes = 0
    while num_decodes < num_reqs:
        query_len = int(start_loc[num_decodes + 1]) - int(start_loc[num_decodes])
        if query_len >= decode_threshold:
            break
        num_decodes += 1
    num_decode_tokens = int(start_loc[num_decodes])
    return num_decodes, num_reqs - num_decodes, num_decode_tokens, num_tokens - num_decode_tokens
