"""The attention backends that are registered with vLLM as CUSTOM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, MultipleOf

from mla_contract.backends.cuda_sparse import declaration as cuda
from mla_contract.backends.rocm_sparse import declaration as rocm
from mla_contract.backends.vllm.builders import CudaSparseEngineBuilder, RocmSparseEngineBuilder
from mla_contract.backends.vllm.impl import CudaSparseImpl, RocmSparseImpl
from mla_contract.contract.schema import declaration


class _Sparse(AttentionBackend):  # type: ignore[misc]
    """Sparse MLA over a cache with one row for each token."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16, torch.float16]

    @staticmethod
    def get_name() -> str:
        """Return the name under which it is registered."""
        return "CUSTOM"

    @classmethod
    def is_mla(cls) -> bool:
        """Return True."""
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        """Return True."""
        return True

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """Return the shape of a layer's cache."""
        return (num_blocks, block_size, head_size)


class RocmSparse(_Sparse):
    """The ROCm sparse backend."""

    @staticmethod
    def get_builder_cls() -> type[RocmSparseEngineBuilder]:
        """Return the builder."""
        return RocmSparseEngineBuilder

    @staticmethod
    def get_impl_cls() -> type[RocmSparseImpl]:
        """Return the impl."""
        return RocmSparseImpl

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        """Return what the backend declares."""
        return _in_engine_words(rocm.BLOCK_SIZES)


class CudaSparse(_Sparse):
    """The CUDA sparse backend."""

    @staticmethod
    def get_builder_cls() -> type[CudaSparseEngineBuilder]:
        """Return the builder."""
        return CudaSparseEngineBuilder

    @staticmethod
    def get_impl_cls() -> type[CudaSparseImpl]:
        """Return the impl."""
        return CudaSparseImpl

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        """Return what the backend declares."""
        return _in_engine_words(cuda.BLOCK_SIZES)


def _in_engine_words(sizes: Sequence[int | declaration.MultipleOf]) -> list[Any]:
    """Return declared block sizes as vLLM states them."""
    return [MultipleOf(size.base) if isinstance(size, declaration.MultipleOf) else size for size in sizes]
