"""Recipes of tiny random models: every weight is drawn, and attention matters to the result.

Source: measured with vLLM 0.32.0 and transformers 5.19.0; with default weights dense and sparse runs give equal tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 512
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": 96,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
_READ_BY_ENGINE: dict[str, Any] = {
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 0,
}
"""What vLLM reads of the configuration and transformers does not write."""


def write_dense_model(folder: Path, seed: int = 0) -> Path:
    """Write a tiny DeepSeek-V3 with random weights, and return its folder.

    Args:
        folder: Where to write; made when it is missing.
        seed: Seed of the weights.
    """
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    return _write(DeepseekV3ForCausalLM, DeepseekV3Config(**_COMMON), folder, seed)


def write_sparse_model(folder: Path, seed: int = 0, *, topk_tokens: int = 32) -> Path:
    """Write a tiny DeepSeek-V3.2 with random weights, and return its folder.

    Args:
        folder: Where to write; made when it is missing.
        seed: Seed of the weights.
        topk_tokens: Positions that the indexer selects for each token.
    """
    from transformers import DeepseekV32Config, DeepseekV32ForCausalLM

    config = DeepseekV32Config(**_COMMON, index_topk=topk_tokens, index_n_heads=4, index_head_dim=128)
    return _write(DeepseekV32ForCausalLM, config, folder, seed)


def _write(model_class: Any, config: Any, folder: Path, seed: int) -> Path:
    """Draw peaky weights, and save model and configuration."""
    import torch

    torch.manual_seed(seed)
    model = model_class(config).to(torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim >= 2:
                fan_in = weight.shape[-1]
                gain = 2.0 if "attn" in name else 1.2
                weight.normal_(0.0, gain * fan_in**-0.5)
            if "embed_tokens" in name:
                weight.normal_(0.0, 1.0)
    model.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | _READ_BY_ENGINE, indent=1), "utf-8")
    return folder
