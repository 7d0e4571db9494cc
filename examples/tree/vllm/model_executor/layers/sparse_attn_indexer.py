import torch

from vllm.forward_context import get_forward_context
from vllm.v1.attention.backends.mla.indexer import ExampleIndexerMetadata


def sparse_attn_indexer(
    q: torch.Tensor, kv_cache: torch.Tensor, keys: torch.Tensor, topk_indices: torch.Tensor, layer_name: str
):
    attn_metadata = get_forward_context().attn_metadata
    if not isinstance(attn_metadata, dict):
        return topk_indices
    metadata = attn_metadata[layer_name]
    assert isinstance(metadata, ExampleIndexerMetadata)
    torch.ops.example.insert_keys(q, kv_cache, metadata.slot_mapping)
    if metadata.num_prefills > 0:
        for chunk in metadata.chunks:
            if not chunk.skip_kv_gather:
                torch.ops.example.gather_keys(kv_cache, keys[: chunk.total_seq_lens], chunk.block_table)
            rows = slice(chunk.token_start, chunk.token_end)
            torch.ops.example.score(q[rows], keys[: chunk.total_seq_lens], topk_indices[rows])
    if metadata.num_decode_tokens > 0:
        rows = slice(0, metadata.num_decode_tokens)
        torch.ops.example.score_paged(q[rows], kv_cache, topk_indices[rows])
    return topk_indices
