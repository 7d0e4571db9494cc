"""Recipes of tiny random models: every weight is drawn, and attention matters to the result.

Source: measured with vLLM 0.32.0 and transformers 5.19.0; with default weights dense and sparse runs give equal tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 512
GAIN, ATTENTION_GAIN = 1.2, 2.0
CALM_GAIN, CALM_OUTPUT_GAIN = 1.0, 0.2
"""Gains of a calm model's attention: answers survive rounding, and still change when nothing is left out."""
CALM_SEEDS = {"deepseek_v32": 7, "glm_moe_dsa": 11}
"""Seeds with which transformers' best token is ahead by 1 % or more wherever the smoke run's prompts lead."""
INDEX_HEADS = 32
"""Few heads would make ties of rectified scores common, and aiter's decode kernel needs a multiple of 32."""
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
_GLM_SHARING: dict[str, Any] = {"index_topk_freq": 2, "index_skip_topk_offset": 2}
"""The last layer takes the selection of the layer before."""


def write_dense_model(folder: Path, seed: int = 0) -> Path:
    """Write a tiny DeepSeek-V3 with random weights, and return its folder.

    Args:
        folder: Where to write; made when it is missing.
        seed: Seed of the weights.
    """
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    return _write(DeepseekV3ForCausalLM(DeepseekV3Config(**_COMMON)), folder, seed)


def write_sparse_model(folder: Path, seed: int = 0, *, topk_tokens: int = 32, calm: bool = False) -> Path:
    """Write a tiny DeepSeek-V3.2 with random weights, and return its folder.

    Args:
        folder: Where to write; made when it is missing.
        seed: Seed of the weights.
        topk_tokens: Positions that the indexer selects for each token.
        calm: Whether answers must not hang on the last bits, as those to rounded numbers would: a value that falls to
            the other side moves a selection, and then tokens. Transformers itself then disagrees with itself when it
            sums in another order. Adds to the seed that of ``CALM_SEEDS``.
    """
    from transformers import DeepseekV32Config, DeepseekV32ForCausalLM

    config = DeepseekV32Config(**_sparse_fields(topk_tokens, calm))
    return _write(DeepseekV32ForCausalLM(config), folder, seed, calm=calm)


def write_glm_model(folder: Path, seed: int = 0, *, topk_tokens: int = 32, calm: bool = False) -> Path:
    """Write a tiny GLM-MoE-DSA with random weights, and return its folder; arguments as for the other sparse model."""
    from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

    config = GlmMoeDsaConfig(**_sparse_fields(topk_tokens, calm), **_GLM_SHARING)
    written = _write(GlmMoeDsaForCausalLM(config), folder, seed, calm=calm)
    return _add_to_config(written, {"indexer_rope_interleave": True, **_GLM_SHARING})


def _sparse_fields(topk_tokens: int, calm: bool) -> dict[str, Any]:
    """Return the configuration of a sparse model; a calm one has no expert that could be left out."""
    experts = {"num_experts_per_tok": _COMMON["n_routed_experts"]} if calm else {}
    return _COMMON | experts | {"index_topk": topk_tokens, "index_n_heads": INDEX_HEADS, "index_head_dim": 128}


def _write(model: Any, folder: Path, seed: int, *, calm: bool = False) -> Path:
    """Draw peaky weights, and save model and configuration."""
    import torch

    torch.manual_seed(seed + CALM_SEEDS[model.config.model_type] if calm else seed)
    model = model.to(torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim >= 2:
                weight.normal_(0.0, _gain(name, calm) * weight.shape[-1] ** -0.5)
            if "embed_tokens" in name:
                weight.normal_(0.0, 1.0)
    model.save_pretrained(folder)
    return _add_to_config(folder, _READ_BY_ENGINE)


def _gain(name: str, calm: bool) -> float:
    """Return how much larger than a neutral matrix a weight is drawn."""
    if "attn" not in name:
        return GAIN
    if not calm:
        return ATTENTION_GAIN
    return CALM_OUTPUT_GAIN if "o_proj" in name else CALM_GAIN


def _add_to_config(folder: Path, fields: dict[str, Any]) -> Path:
    """Add fields to a written configuration, and return the folder."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | fields, indent=1), "utf-8")
    return folder
