from dataclasses import dataclass

import torch

from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.split import split_decodes_and_prefills


class ExampleIndexerBackend(AttentionBackend):
    @staticmethod
    def get_builder_cls() -> "type[ExampleIndexerMetadataBuilder]":
        return ExampleIndexerMetadataBuilder


@dataclass
class ExampleIndexerChunkMetadata:
    block_table: torch.Tensor
    token_start: int
    token_end: int
    total_seq_lens: int
    skip_kv_gather: bool = False


@dataclass
class ExampleIndexerMetadata(AttentionMetadata):
    num_prefills: int
    num_decode_tokens: int
    slot_mapping: torch.Tensor
    chunks: list[ExampleIndexerChunkMetadata]


class ExampleIndexerMetadataBuilder(AttentionMetadataBuilder[ExampleIndexerMetadata]):
    max_chunk_tokens: int

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> ExampleIndexerMetadata:
        _, num_prefills, num_decode_tokens, num_prefill_tokens = split_decodes_and_prefills(common_attn_metadata)
        chunks = []
        for start in range(0, num_prefill_tokens, self.max_chunk_tokens):
            chunk = ExampleIndexerChunkMetadata(
                block_table=common_attn_metadata.block_table_tensor,
                token_start=num_decode_tokens + start,
                token_end=num_decode_tokens + min(start + self.max_chunk_tokens, num_prefill_tokens),
                total_seq_lens=int(common_attn_metadata.seq_lens.sum()),
                # The keys of a request whose query is split over chunks are gathered once, by the first of them.
                skip_kv_gather=start > 0,
            )
            chunks.append(chunk)
        return ExampleIndexerMetadata(
            num_prefills=num_prefills,
            num_decode_tokens=num_decode_tokens,
            slot_mapping=common_attn_metadata.slot_mapping,
            chunks=chunks,
        )
