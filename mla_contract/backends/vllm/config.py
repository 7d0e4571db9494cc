"""From vLLM's configuration to that of a sparse backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from mla_contract.backends.choice import index_cache
from mla_contract.backends.sparse.config import SparseConfig
from mla_contract.backends.vllm.providers import plans_work
from mla_contract.contract.schema.persistent_work import WorkConfig
from mla_contract.contract.schema.provider import SHUFFLE_TILE, IndexerCacheFormat, KeyLayout
from mla_contract.errors import InvalidContract
from mla_contract.profiles.installed import installed_release


def sparse_config(vllm_config: Any, *, shuffled: bool, block_size: int | None = None) -> SparseConfig:
    """Return the configuration of a sparse backend.

    Args:
        vllm_config: The VllmConfig.
        shuffled: Whether the backend's kernels read quantised keys in tiles.
        block_size: Tokens of a block as the kernels count them; the cache's by default.

    Raises:
        InvalidContract: vLLM is configured for something that these backends do not do.

    Source: vLLM 0.32.0 config/
    """
    model, scheduler, cache = vllm_config.model_config, vllm_config.scheduler_config, vllm_config.cache_config
    _refuse(vllm_config)
    text = model.hf_text_config
    block_size = block_size or cache.block_size
    dtype = cache_dtype(cache.cache_dtype, model.dtype)
    speculative = vllm_config.speculative_config
    config = SparseConfig(
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=model.max_model_len,
        max_capture_size=vllm_config.compilation_config.max_cudagraph_capture_size or 0,
        block_size=block_size,
        topk_tokens=text.index_topk,
        next_n=1 if speculative is None else 1 + (speculative.num_speculative_tokens or 0),
        num_heads=model.get_num_attention_heads(vllm_config.parallel_config),
        width=text.kv_lora_rank + text.qk_rope_head_dim,
        value_width=text.kv_lora_rank,
        q_dtype=dtype,
        kv_dtype=dtype,
        out_dtype=dtype,
        index_heads=text.index_n_heads,
        index_format=_index_format(text.index_head_dim, block_size, shuffled),
        release=installed_release(),
    )
    work = WorkConfig(
        num_rows=config.token_rows, num_heads=config.num_heads, q_dtype=config.q_dtype, kv_dtype=config.kv_dtype
    )
    return replace(config, persistent=plans_work(work))


def cache_dtype(word: str, model_dtype: torch.dtype) -> torch.dtype:
    """Return the element type of the attention's cache, which its queries and output have as well.

    Raises:
        InvalidContract: The cache is to be quantised.
    """
    known = {"auto": model_dtype, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if word not in known:
        raise InvalidContract(f"kv_cache_dtype={word}: these backends keep latents as {', '.join(known)}")
    return known[word]


def _index_format(head_dim: int, block_size: int, shuffled: bool) -> IndexerCacheFormat:
    """Return how the indexer's cache stores keys."""
    if index_cache() == "float":
        return IndexerCacheFormat(head_dim=head_dim, fp8_dtype=None)
    from vllm.platforms import current_platform

    tiled = shuffled and block_size % SHUFFLE_TILE == 0
    layout = KeyLayout.SHUFFLE if tiled else KeyLayout.NORMAL
    return IndexerCacheFormat(head_dim=head_dim, fp8_dtype=current_platform.fp8_dtype(), layout=layout)


def _refuse(vllm_config: Any) -> None:
    """Raise for what would give wrong results."""
    parallel = vllm_config.parallel_config
    broken = [
        name
        for name in ("decode_context_parallel_size", "prefill_context_parallel_size")
        if getattr(parallel, name, 1) > 1
    ]
    if getattr(parallel, "enable_dbo", False):
        broken.append("enable_dbo")
    if broken:
        raise InvalidContract(f"{', '.join(broken)}: these backends run without it")
