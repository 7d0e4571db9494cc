"""vLLM's own sparse builder and impl; the two kernels that the CPU lacks are written in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.attention.sparse_mla_attention import (
    SparseMLACommonImpl,
    SparseMLACommonMetadata,
    SparseMLACommonMetadataBuilder,
)
from vllm.v1.attention.backend import AttentionBackend, MultipleOf


@dataclass
class Metadata(SparseMLACommonMetadata):  # type: ignore[misc]
    """What the builder makes; nothing is added."""


class Builder(SparseMLACommonMetadataBuilder[Metadata]):  # type: ignore[misc]
    """Builds that class, and nothing else differs."""

    metadata_cls = Metadata

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._init_reorder_batch_threshold(1)


class Impl(SparseMLACommonImpl[Metadata]):  # type: ignore[misc]
    """Adds cache write and decode."""

    def do_kv_cache_update(
        self, kv_c_normed: Any, k_pe: Any, kv_cache: Any, slot_mapping: Any, kv_cache_dtype: str, k_scale: Any
    ) -> None:
        """Store latent and rope part of each token."""
        block_size = kv_cache.shape[-2]
        rows = torch.cat([kv_c_normed, k_pe.squeeze(1)], -1)[: len(slot_mapping)]
        kept = slot_mapping >= 0
        slots = slot_mapping[kept]
        kv_cache.view(kv_cache.shape[0], block_size, -1)[slots // block_size, slots % block_size] = rows[kept]

    def forward_mqa(self, q: Any, kv_c_and_k_pe_cache: Any, attn_metadata: Any, layer: Any) -> tuple[Any, None]:
        """Attend to the selected positions of each token."""
        q = torch.cat(q, -1) if isinstance(q, tuple) else q
        tokens = q.shape[0]
        chosen = self.topk_indices_buffer[:tokens].long()
        safe = chosen.clamp(min=0)
        size = kv_c_and_k_pe_cache.shape[-2]
        table = attn_metadata.block_table[attn_metadata.req_id_per_token[:tokens].long()].long()
        blocks = torch.gather(table, 1, safe // size)
        cache = kv_c_and_k_pe_cache.view(kv_c_and_k_pe_cache.shape[0], size, -1)
        rows = cache[blocks, safe % size]
        scores = torch.einsum("thd,tkd->thk", q, rows) * self.scale
        scores.masked_fill_((chosen < 0)[:, None], float("-inf"))
        return torch.einsum("thk,tkd->thd", scores.softmax(-1), rows[..., : self.kv_lora_rank]), None


class InTreeSparseBackend(AttentionBackend):  # type: ignore[misc]
    """Sparse MLA on the CPU."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16]

    @staticmethod
    def get_name() -> str:
        """Return the name under which it is registered."""
        return "CUSTOM"

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        """Return the builder."""
        return Builder

    @staticmethod
    def get_impl_cls() -> type[Impl]:
        """Return the impl."""
        return Impl

    @classmethod
    def is_mla(cls) -> bool:
        """Return True."""
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        """Return True."""
        return True

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        """Return any size."""
        return [MultipleOf(1)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        """Return the width of a cached row."""
        return [576]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """Return the shape of a layer's cache."""
        return (num_blocks, block_size, head_size)
