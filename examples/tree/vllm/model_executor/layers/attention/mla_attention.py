import torch

from vllm.model_executor.layers.attention.attention import get_attention_context


class MLAAttention(torch.nn.Module):
    def __init__(self, num_heads: int, prefix: str, attn_backend):
        super().__init__()
        self.layer_name = prefix
        self.attn_backend = attn_backend
        self.impl = attn_backend.get_impl_cls()(num_heads)

    def forward(self, q: torch.Tensor, kv_c_normed: torch.Tensor, k_pe: torch.Tensor) -> torch.Tensor:
        torch.ops.vllm.unified_mla_kv_cache_update(kv_c_normed, k_pe, self.layer_name)
        return torch.ops.vllm.unified_mla_attention(q, self.layer_name)

    def forward_impl(self, q: torch.Tensor, kv_cache: torch.Tensor, attn_metadata) -> torch.Tensor:
        if attn_metadata is None:
            return torch.zeros_like(q)
        assert attn_metadata.num_decodes is not None
        assert attn_metadata.num_prefills is not None
        num_mqa_tokens = attn_metadata.num_decode_tokens
        if self.impl.is_sparse:
            num_mqa_tokens = attn_metadata.num_actual_tokens
        return self.impl.forward_mqa(q[:num_mqa_tokens], kv_cache, attn_metadata, self)


def unified_mla_kv_cache_update(kv_c_normed: torch.Tensor, k_pe: torch.Tensor, layer_name: str) -> None:
    attn_metadata, attn_layer, kv_cache, slot_mapping = get_attention_context(layer_name)
    if attn_metadata is None:
        return
    num_decode_tokens = attn_metadata.num_decode_tokens
    attn_layer.impl.do_kv_cache_update(kv_c_normed, k_pe, kv_cache, slot_mapping, num_decode_tokens)


def unified_mla_attention(q: torch.Tensor, layer_name: str) -> torch.Tensor:
    attn_metadata, attn_layer, kv_cache, _ = get_attention_context(layer_name)
    return attn_layer.forward_impl(q, kv_cache, attn_metadata)
