from dataclasses import dataclass

from vllm.v1.attention.backend import AttentionMetadata


@dataclass
class ForwardContext:
    no_compile_layers: dict[str, object]
    attn_metadata: dict[str, AttentionMetadata] | None
    slot_mapping: dict[str, object]


_forward_context: ForwardContext | None = None


def get_forward_context() -> ForwardContext:
    if _forward_context is None:
        raise RuntimeError("no forward context is set")
    return _forward_context
