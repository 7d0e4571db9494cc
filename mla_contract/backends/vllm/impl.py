"""vLLM's attention interface around our attention ops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.attention.sparse_mla_attention import SharedTopkIndicesBuffer
from vllm.v1.attention.backend import MLAAttentionImpl

from mla_contract.backends.cuda_sparse.attention import CudaSparseAttention
from mla_contract.backends.rocm_sparse.attention import RocmSparseAttention
from mla_contract.backends.vllm.config import sparse_config
from mla_contract.backends.vllm.providers import given
from mla_contract.backends.vllm.scratch import workspace
from mla_contract.errors import InvalidContract


class _Impl(MLAAttentionImpl, SharedTopkIndicesBuffer):  # type: ignore[misc]
    """All tokens of a step go to ``forward_mqa``, which attends to the positions that the indexer left."""

    is_sparse = True
    supports_dense_mha_prefill = False
    attention_class: ClassVar[Any]
    shuffled: ClassVar[bool]

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        *_: Any,
        logits_soft_cap: float | None = None,
        indexer: Any = None,
        topk_indices_buffer: Tensor | None = None,
        **others: Any,
    ) -> None:
        if alibi_slopes is not None or sliding_window is not None or logits_soft_cap is not None:
            raise InvalidContract("sparse MLA knows no ALiBi, sliding window or soft cap")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.init_topk_indices_buffer(indexer, topk_indices_buffer)
        vllm_config = get_current_vllm_config()
        config = replace(sparse_config(vllm_config, shuffled=self.shuffled), softmax_scale=self.scale)
        device = vllm_config.device_config.device
        self._attention = self.attention_class(config, workspace(device), given(), device)
        self._attention.profile()

    def record_logical_topk_ready(self) -> None:
        """Do nothing: nobody overlaps work with the indexer here."""

    def do_kv_cache_update(
        self,
        kv_c_normed: Tensor,
        k_pe: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        kv_cache_dtype: str,
        k_scale: Tensor,
    ) -> None:
        """Store latent and rope part of each token; the CPU build has no kernel for that."""
        if kv_cache.device.type != "cpu":
            super().do_kv_cache_update(kv_c_normed, k_pe, kv_cache, slot_mapping, kv_cache_dtype, k_scale)
            return
        slots = slot_mapping.flatten()
        stored = slots >= 0
        rows = torch.cat([kv_c_normed, k_pe.squeeze(1)], dim=-1)[: len(slots)]
        kv_cache.view(-1, kv_cache.shape[-1])[slots[stored]] = rows[stored].to(kv_cache.dtype)

    def forward_mqa(
        self, q: Tensor | tuple[Tensor, Tensor], kv_c_and_k_pe_cache: Tensor, attn_metadata: Any, layer: Any
    ) -> tuple[Tensor, None]:
        """Attend in the cache's element type, and return the model's."""
        whole = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        narrow = whole.to(self._attention.config.q_dtype).contiguous()
        value = self._attention.forward_mqa(narrow, kv_c_and_k_pe_cache, self.topk_indices_buffer, attn_metadata)
        return value.to(whole.dtype), None


class RocmSparseImpl(_Impl):
    """Attends over ragged slots."""

    attention_class = RocmSparseAttention
    shuffled = True


class CudaSparseImpl(_Impl):
    """Attends over padded rows."""

    attention_class = CudaSparseAttention
    shuffled = False
