"""Quantisation of keys to the two e4m3 flavours, emulated through torch's own conversions."""

from __future__ import annotations

import torch
from torch import Tensor

FP8_MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0}
"""Largest finite value of each flavour; the bytes of one flavour read as the other are wrong by a factor of 2."""

SMALLEST_AMAX = 1e-4
"""Lower bound of a group's largest magnitude, so that a group of zeros has a usable scale."""


def quantise(values: Tensor, dtype: torch.dtype, group: int, power_of_two: bool) -> tuple[Tensor, Tensor]:
    """Quantise the last axis by groups.

    Args:
        values: Floats, [..., n].
        dtype: Flavour of the result.
        group: Consecutive elements that share a scale; the last group may be shorter.
        power_of_two: Whether scales are rounded up to a power of two.

    Returns:
        Values of ``dtype``, [..., n], and float32 scales, [..., groups]; their product is about the input.

    Source: aiter v0.1.20 csrc/kernels/cache_kernels.cu
    """
    size = values.shape[-1]
    groups = -(-size // group)
    padded = torch.nn.functional.pad(values.float(), (0, groups * group - size))
    padded = padded.reshape(*values.shape[:-1], groups, group)
    scale = padded.abs().amax(-1).clamp_min(SMALLEST_AMAX) / FP8_MAX[dtype]
    if power_of_two:
        mantissa, exponent = torch.frexp(scale)
        scale = torch.ldexp(torch.ones_like(scale), exponent - (mantissa == 0.5).int())
    scaled = (padded / scale.unsqueeze(-1)).clamp(-FP8_MAX[dtype], FP8_MAX[dtype])
    return scaled.flatten(-2)[..., :size].to(dtype), scale


def dequantise(values: Tensor, scales: Tensor, group: int) -> Tensor:
    """Return the float32 values of ``values``, [..., n], under ``scales``, [..., groups]."""
    return values.float() * scales.repeat_interleave(group, dim=-1)[..., : values.shape[-1]]
