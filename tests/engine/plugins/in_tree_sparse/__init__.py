"""Lets the CPU engine run vLLM's own sparse MLA builder and indexer builder; only the kernels are ours, and crude.

The metadata is what this is about: top-k positions are the leading ones, not the best ones.
Source: the hooks were learnt from vLLM 0.32.0 platforms/cpu.py, triton_utils/dispatcher.py, model_executor/custom_op.py
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Register backend, indexer op and kernel bodies."""
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm.platforms import current_platform
    from vllm.triton_utils import triton
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if "SparseAttnIndexer" in op_registry_oot:
        return
    register_backend(AttentionBackendEnum.CUSTOM, "in_tree_sparse.backend.InTreeSparseBackend")
    platform: Any = type(current_platform)
    overrides_before = platform.register_triton_kernel_overrides

    def get_attn_backend_cls(cls: Any, *args: Any, **kwargs: Any) -> str:
        path: str = AttentionBackendEnum.CUSTOM.get_path()
        return path

    def register_triton_kernel_overrides(cls: Any) -> None:
        from vllm.triton_utils.dispatcher import register_kernels

        from .kernels import KERNELS

        overrides_before()
        register_kernels(KERNELS)

    platform.get_attn_backend_cls = classmethod(get_attn_backend_cls)
    platform.register_triton_kernel_overrides = classmethod(register_triton_kernel_overrides)
    triton.next_power_of_2 = lambda size: 1 << (size - 1).bit_length()

    from . import indexer

    indexer.register()
