"""A CPU platform that takes sparse MLA, and keeps the scheduling that was asked for.

Source: vLLM 0.32.0 platforms/cpu.py
"""

from __future__ import annotations

from typing import Any

from vllm.platforms.cpu import CpuPlatform

from mla_contract.backends.choice import chosen_backend

BLOCK_SIZE = 64
"""Tokens of a cache block where none is asked for: the only size of vLLM's indexer on the CPU."""


class SparseCpuPlatform(CpuPlatform):  # type: ignore[misc]
    """vLLM's CPU platform, with sparse MLA."""

    takes_sparse_mla = True

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: Any, attn_selector_config: Any, *args: Any, **kwargs: Any) -> str:
        """Return the chosen backend for sparse attention, and whatever vLLM takes for all other."""
        if attn_selector_config.use_sparse:
            path = chosen_backend()
            if path is not None:
                return path
        found: str = super().get_attn_backend_cls(selected_backend, attn_selector_config, *args, **kwargs)
        return found

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Update as vLLM does, then put back what it switches off for MLA, and rotate natively.

        The compiled rope is wrong for queries with a head axis, so sparse models would be silently wrong with it.
        """
        if not cls._is_sparse(vllm_config):
            super().check_and_update_config(vllm_config)
            return
        scheduler, cache = vllm_config.scheduler_config, vllm_config.cache_config
        asked = scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens, cache.enable_prefix_caching
        block_size = cache.block_size if cache.user_specified_block_size else BLOCK_SIZE
        super().check_and_update_config(vllm_config)
        scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens, cache.enable_prefix_caching = asked
        cache.block_size = block_size
        operations = vllm_config.compilation_config.custom_ops
        if "-rotary_embedding" not in operations:
            operations.append("-rotary_embedding")

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        """Register as vLLM does, and add a body that builders derived from vLLM's sparse one need."""
        from vllm.triton_utils.dispatcher import register_kernels

        from mla_contract.backends.vllm.triton_overrides import KERNELS

        super().register_triton_kernel_overrides()
        register_kernels(KERNELS)

    @classmethod
    def _is_sparse(cls, vllm_config: Any) -> bool:
        """Return whether the model selects positions."""
        model = vllm_config.model_config
        return model is not None and hasattr(model.hf_text_config, "index_topk")
