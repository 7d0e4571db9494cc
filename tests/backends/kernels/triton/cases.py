"""Inputs of the kernels' tests: one record for both providers, outputs poisoned."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.contract.schema.provider import Operation, SparseAttention
from mla_contract.contract.structure.arrays import is_array
from tests.backends.kernels.cases import ragged

Inputs = TypeVar("Inputs", bound=Operation[Any])

REFERENCE = ReferenceProvider()
SCALE = 0.3

BF16_ERROR = 5e-3
"""Relative error of the whole output: products are rounded to bfloat16 once before the second matrix product."""


def on(inputs: Inputs, device: torch.device) -> Inputs:
    """Return the record with every array copied to a device."""
    record: Any = inputs
    arrays = {one.name: getattr(record, one.name) for one in fields(record)}
    moved = {name: value.clone().to(device) for name, value in arrays.items() if is_array(value)}
    copied: Inputs = replace(record, **moved)
    return copied


def relative_error(got: Tensor, wanted: Tensor) -> float:
    """Return the norm of the difference over the norm of what is wanted; NaN where anything is NaN."""
    got, wanted = got.cpu().double(), wanted.double()
    return float((got - wanted).norm() / wanted.norm())


def attention(
    lens: list[int],
    heads: int,
    dtypes: tuple[torch.dtype, torch.dtype],
    widths: tuple[int, int] = (24, 16),
    **changes: Any,
) -> SparseAttention:
    """Return an attention over random slots, every seventh -1, with poisoned outputs."""
    generator = torch.Generator().manual_seed(len(lens) + heads)
    width, latent = widths
    kv = torch.randn(80, width, generator=generator).to(dtypes[1])
    q = torch.randn(len(lens), heads, width, generator=generator).to(dtypes[0])
    indptr, indices = ragged(lens, 80)
    indices[::7] = -1
    inputs = SparseAttention(
        q=q,
        kv_cache=kv,
        kv_indptr=indptr,
        kv_indices=indices,
        out=torch.full((len(lens), heads, latent), torch.nan),
        softmax_scale=SCALE * (24 / width) ** 0.5,
        lse=torch.full((len(lens), heads), torch.nan),
    )
    return replace(inputs, **changes)
