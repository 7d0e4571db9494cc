"""What the provider must know of the GPU; injectable, so that everything but the kernels runs anywhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch

FP8_OF_ARCH = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
"""The e4m3 flavour of each known arch; aiter takes either for the other without a check and reads wrong values."""


@dataclass(frozen=True, slots=True)
class AiterDevice:
    """One GPU.

    Attributes:
        arch: Name of its instruction set, such as ``gfx942``.
        type: Device type that its tensors have.
    """

    arch: str
    type: str = "cuda"

    @property
    def fp8(self) -> torch.dtype | None:
        """The arch's e4m3 flavour, or None for an arch that is not known."""
        return FP8_OF_ARCH.get(self.arch)


def detect() -> AiterDevice | str:
    """Return the current GPU, or why there is none that aiter can use."""
    if torch.version.hip is None:
        return "this PyTorch is built without ROCm"
    if not torch.cuda.is_available():
        return "PyTorch sees no ROCm device"
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    arch = str(getattr(found, "gcnArchName", "")).partition(":")[0]
    return AiterDevice(arch)
