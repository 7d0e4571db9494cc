"""Portable Triton kernels as a provider: ROCm where its own library has no kernel, and CUDA."""

from mla_contract.backends.kernels.triton.provider import TritonProvider

__all__ = ["TritonProvider"]
