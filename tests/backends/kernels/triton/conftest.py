"""Where the Triton kernels run here: on a GPU, in Triton's interpreter, or nowhere, with the reason."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch

from mla_contract.contract.schema.provider import KernelProvider

if find_spec("triton") and not torch.cuda.is_available():
    # Kernels read it when they are imported; on a CPU nothing else could run them.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def kernels() -> KernelProvider:
    """Return the provider; without Triton its tests are skipped."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from mla_contract.backends.kernels.triton import TritonProvider

    return TritonProvider(interpreted=True)


@pytest.fixture(scope="session")
def place(kernels: KernelProvider) -> torch.device:
    """Return the device on which the kernels run: the GPU, or the CPU in the interpreter."""
    from mla_contract.backends.kernels.triton.device import INTERPRETED

    if INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("neither a GPU nor TRITON_INTERPRET=1")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="session")
def flavours(place: torch.device) -> tuple[torch.dtype, ...]:
    """Return the fp8 flavours that the kernels can convert here."""
    from mla_contract.backends.kernels.triton.device import find_device

    found = find_device(place.type, place.index)
    return () if isinstance(found, str) else found.fp8
