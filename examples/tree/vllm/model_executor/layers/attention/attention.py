from typing import Any

from vllm.forward_context import ForwardContext, get_forward_context


def get_attention_context(layer_name: str) -> tuple[Any, Any, Any, Any]:
    forward_context: ForwardContext = get_forward_context()
    attn_metadata = forward_context.attn_metadata
    if isinstance(attn_metadata, dict):
        attn_metadata = attn_metadata[layer_name]
    attn_layer = forward_context.no_compile_layers[layer_name]
    return attn_metadata, attn_layer, attn_layer.kv_cache, forward_context.slot_mapping.get(layer_name)
