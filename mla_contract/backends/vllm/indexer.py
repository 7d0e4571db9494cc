"""vLLM's indexer op and indexer cache around our indexer."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer
from vllm.model_executor.models.deepseek_v2 import DeepseekV32IndexerCache

from mla_contract.backends.kernels.reference.quantise import quantise
from mla_contract.backends.sparse.indexer import IndexerInputs, SparseIndexer
from mla_contract.backends.vllm.builders import IndexerEngineBuilder
from mla_contract.backends.vllm.config import sparse_config
from mla_contract.backends.vllm.providers import given
from mla_contract.backends.vllm.scratch import workspace


class EngineIndexer(SparseAttnIndexer):  # type: ignore[misc]
    """The indexer op on every device: our indexer, over this layer's cache and record."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._vllm_config = get_current_vllm_config()

    @cached_property
    def _indexer(self) -> SparseIndexer:
        """Our indexer; made when the cache's block size is final."""
        config = sparse_config(self._vllm_config, shuffled=IndexerEngineBuilder.shuffled)
        return SparseIndexer(config, workspace(self.topk_indices_buffer.device), given())

    def forward_native(self, hidden_states: Tensor, q_quant: Tensor, k: Tensor, weights: Tensor) -> Tensor:
        """Write keys and leave each token's best positions in the shared buffer."""
        metadata = get_forward_context().attn_metadata
        record = metadata[self.k_cache.prefix] if isinstance(metadata, dict) else None
        inputs = IndexerInputs(q_quant, k, weights.float(), self.k_cache.kv_cache)
        return self._indexer.run(inputs, record, self.topk_indices_buffer)

    forward_cuda = forward_hip = forward_xpu = forward_cpu = forward_native


class FloatIndexerCache(DeepseekV32IndexerCache):  # type: ignore[misc]
    """An indexer cache that keeps keys as the model has them, so that selection can be compared exactly."""

    def __init__(self, head_dim: int, dtype: torch.dtype, prefix: str, cache_config: Any) -> None:
        model = get_current_vllm_config().model_config
        super().__init__(model.hf_text_config.index_head_dim, model.dtype, prefix, cache_config)


def keep_queries(x: Tensor, group_size: int, **_: Any) -> tuple[Tensor, Tensor]:
    """Return queries as they are, with scales of 1: what a float cache is scored with."""
    return x, x.new_ones(*x.shape[:-1], x.shape[-1] // group_size, dtype=torch.float32)


def quantise_queries(x: Tensor, group_size: int, use_ue8m0: bool = False, **_: Any) -> tuple[Tensor, Tensor]:
    """Return quantised queries and their scales; vLLM's own function needs Triton or a GPU."""
    from vllm.platforms import current_platform

    return quantise(x, current_platform.fp8_dtype(), group_size, use_ue8m0)
