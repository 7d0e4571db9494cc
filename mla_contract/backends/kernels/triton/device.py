"""Where kernels run, and which element types they may have there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from mla_contract.backends.kernels.triton.topk_kernels import sortable

FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz

SMALLEST_TILE = 16
"""Least extent of a tile in a matrix product."""

INTERPRETED = not isinstance(sortable, triton.JITFunction)
"""Whether TRITON_INTERPRET was set when the kernels were imported: they then run anywhere, one program at a time."""

FLOATS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
FP8 = {FN: tl.float8e4nv, FNUZ: tl.float8e4b8}


@dataclass(frozen=True, slots=True)
class TritonDevice:
    """What the provider must know of a device.

    Attributes:
        arch: Key of the launch table: ``sm90``, ``gfx942``, or ``interpreter``.
        fp8: Flavours that kernels can convert there.
        fp8_dot: Whether products of two fp8 tiles are taken as they are, not converted to 16 bits.
    """

    arch: str
    fp8: tuple[torch.dtype, ...]
    fp8_dot: bool


@cache
def find_device(kind: str, index: int | None) -> TritonDevice | str:
    """Return what is known of a device, or why no kernel runs there."""
    if INTERPRETED:
        return TritonDevice("interpreter", (FN, FNUZ), fp8_dot=False)
    if kind != "cuda":
        return f"the arrays are on {kind}: Triton needs a GPU, or TRITON_INTERPRET=1 before its first import"
    found = torch.cuda.get_device_properties(index)
    if torch.version.hip is not None:
        return device_of(str(getattr(found, "gcnArchName", "")).partition(":")[0])
    return device_of(f"sm{found.major}{found.minor}")


def device_of(arch: str) -> TritonDevice:
    """Return what is known of a GPU by the name of its architecture."""
    if arch.startswith("sm"):
        fp8 = int(arch.removeprefix("sm")) >= 89
        return TritonDevice(arch, (FN,) if fp8 else (), fp8_dot=fp8)
    return TritonDevice(arch, {"gfx942": (FNUZ,), "gfx950": (FN,)}.get(arch, ()), fp8_dot=False)


def dot_type_of(a: torch.dtype, b: torch.dtype, device: TritonDevice) -> torch.dtype:
    """Return the element type in which two tiles are multiplied; none loses a bit of either."""
    kinds = {a, b}
    if INTERPRETED:
        # Its products of bfloat16 multiply the bit patterns.
        return torch.float32
    if kinds <= set(FP8):
        return a if device.fp8_dot and len(kinds) == 1 else torch.bfloat16
    floats = kinds - set(FP8)
    return floats.pop() if len(floats) == 1 else torch.float32


def triton_type(dtype: torch.dtype) -> object:
    """Return Triton's name of an element type."""
    return FLOATS.get(dtype) or FP8[dtype]


def padded(size: int, smallest: int = SMALLEST_TILE) -> int:
    """Return the extent of a tile axis that holds ``size``: a power of two that a product can have."""
    return max(smallest, 1 << (size - 1).bit_length())
