"""Tests that need a GPU: collected everywhere, skipped with the reason."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from mla_contract.contract.schema.provider import KernelProvider


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    """Return the GPU; without one the test is skipped."""
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="session")
def kernels(gpu: torch.device) -> KernelProvider:
    """Return the Triton provider."""
    from mla_contract.backends.kernels.triton import TritonProvider

    return TritonProvider()
