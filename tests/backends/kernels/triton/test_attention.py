"""Triton's sparse attention against the reference; every output is poisoned before."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mla_contract.contract.schema.provider import KernelProvider, SparseAttention
from tests.backends.kernels.cases import TOPK
from tests.backends.kernels.triton.cases import BF16_ERROR, REFERENCE, attention, on, relative_error

LENS = [TOPK - 1, TOPK, TOPK + 1, 0, 1, 5, 0]
TILED = (72, 64)
"""Widths whose latent part lies in four tiles."""
BF16, FP32, FP16 = torch.bfloat16, torch.float32, torch.float16


def errors(kernels: KernelProvider, place: torch.device, inputs: SparseAttention) -> tuple[float, float]:
    """Return the relative error of the output and the largest difference of the LSE, after running both providers."""
    wanted, got = on(inputs, torch.device("cpu")), on(inputs, place)
    REFERENCE.run(wanted)
    kernels.run(got)
    output = relative_error(got.out, wanted.out)
    if wanted.lse is None or got.lse is None:
        return output, 0.0
    empty = torch.isneginf(wanted.lse)
    assert torch.equal(torch.isneginf(got.lse.cpu()), empty)
    assert not got.out.cpu()[empty].any()
    return output, float((got.lse.cpu() - wanted.lse)[~empty].abs().max())


@pytest.mark.parametrize("heads", [1, 7, 16, 20, 33, 64, 128])
def test_attention_any_heads_equals_reference(kernels: KernelProvider, place: torch.device, heads: int) -> None:
    """Every head count agrees; -1 entries and empty rows are safe."""
    lens = LENS if place.type == "cuda" or heads == 20 else LENS[-3:]
    output, lse = errors(kernels, place, attention(lens, heads, (BF16, BF16)))
    assert output < BF16_ERROR and lse < 1e-3


@pytest.mark.parametrize("dtype", [FP32, FP16])
def test_attention_other_types_equal_reference(
    kernels: KernelProvider, place: torch.device, dtype: torch.dtype
) -> None:
    """Float32 is computed in float32, float16 in float16."""
    output, lse = errors(kernels, place, attention(LENS, 4, (dtype, dtype)))
    assert output < (1e-5 if dtype is FP32 else 1e-3) and lse < 1e-3


@pytest.mark.parametrize("widths", [(576, 512), TILED, (40, 24), (100, 100), (140, 24)])
def test_attention_any_width_equals_reference(
    kernels: KernelProvider, place: torch.device, widths: tuple[int, int]
) -> None:
    """The real width, odd ones, one without a rope part and one with a wide one agree."""
    output, lse = errors(kernels, place, attention(LENS, 3, (BF16, BF16), widths))
    assert output < BF16_ERROR and lse < 1e-3


def test_attention_many_rows_are_one_pass_and_equal_reference(kernels: KernelProvider, place: torch.device) -> None:
    """So many rows that none is split agree as well."""
    lens = [LENS[row % len(LENS)] for row in range(300 if place.type == "cuda" else 17)]
    output, lse = errors(kernels, place, attention(lens, 2, (BF16, BF16)))
    assert output < BF16_ERROR and lse < 1e-3


@pytest.mark.parametrize("widths", [(24, 16), TILED])
@pytest.mark.parametrize("rows", [3, 300])
def test_attention_sinks_without_lse_equal_reference(
    kernels: KernelProvider, place: torch.device, rows: int, widths: tuple[int, int]
) -> None:
    """Sinks enter the sum in both passes, the LSE is optional, and a large sink leaves next to nothing."""
    if place.type == "cpu" and rows > 3:
        rows = 17
    sinks = torch.tensor([0.5, -3.0, 4.0, -200.0, 200.0])
    lens = [LENS[row % len(LENS)] for row in range(rows)]
    output, _ = errors(kernels, place, attention(lens, 5, (BF16, BF16), widths, sinks=sinks, lse=None))
    assert output < BF16_ERROR


@pytest.mark.parametrize("narrow_q", [True, False])
def test_attention_fp8_equals_reference(
    kernels: KernelProvider, place: torch.device, flavours: tuple[torch.dtype, ...], narrow_q: bool
) -> None:
    """Quantised inputs are exact, so the bfloat16 error holds; both scales are applied."""
    for flavour in flavours:
        dtypes = (flavour if narrow_q else BF16, flavour)
        q_scale = torch.tensor([0.75]) if narrow_q else None
        heads = 4 if place.type == "cpu" else 128
        inputs = attention(LENS, heads, dtypes, TILED, q_scale=q_scale, kv_scale=torch.tensor([1.25]))
        output, lse = errors(kernels, place, inputs)
        assert output < BF16_ERROR and lse < 1e-3


@pytest.mark.parametrize("heads", [3, 128])
def test_attention_with_promises_never_reads_other_slots(
    kernels: KernelProvider, place: torch.device, heads: int
) -> None:
    """Without -1 entries loads need no mask: rows end where they end, and slots that nobody selected may hold NaN."""
    lens = LENS if place.type == "cuda" else LENS[2:]
    inputs = attention(lens, heads, (BF16, BF16), (576, 512) if place.type == "cuda" else TILED, has_invalid=False)
    slots = inputs.kv_indices.clamp(min=3)
    poisoned = inputs.kv_cache.clone()
    poisoned[:3] = torch.nan
    output, lse = errors(kernels, place, replace(inputs, kv_indices=slots, kv_cache=poisoned))
    assert output < BF16_ERROR and lse < 1e-3
    nothing = on(attention([0], heads, (BF16, BF16), has_invalid=False), place)
    kernels.run(nothing)
    assert not nothing.out.any()


@pytest.mark.parametrize("heads", [3, 128])
def test_attention_with_dead_entries_reads_selected_slots_only(
    kernels: KernelProvider, place: torch.device, heads: int
) -> None:
    """Whole blocks of -1, first, last and alone, and NaN in slots that nobody selected, leave no trace."""
    lens = [70, 150, 150, 150, 5]
    inputs = attention(lens, heads, (BF16, BF16), (576, 512) if place.type == "cuda" else TILED)
    slots = torch.where(inputs.kv_indices < 0, -1, inputs.kv_indices.clamp(min=3))
    starts = inputs.kv_indptr.tolist()
    slots[starts[0] : starts[1]] = -1
    slots[starts[1] : starts[1] + 140] = -1
    slots[starts[2] + 64 : starts[2] + 128] = -1
    slots[starts[3] + 10 : starts[4]] = -1
    poisoned = inputs.kv_cache.clone()
    poisoned[:3] = torch.nan
    output, lse = errors(kernels, place, replace(inputs, kv_indices=slots, kv_cache=poisoned))
    assert output < BF16_ERROR and lse < 1e-3


def test_attention_of_no_rows_is_nothing(kernels: KernelProvider, place: torch.device) -> None:
    """A batch without rows launches nothing, and rows without entries are zero."""
    nothing = on(attention([], 2, (BF16, BF16)), place)
    kernels.run(nothing)
    empty = on(attention([0, 0], 2, (BF16, BF16)), place)
    kernels.run(empty)
    assert not empty.out.any() and empty.lse is not None and torch.isneginf(empty.lse).all()


def test_attention_writes_its_own_rows_only(kernels: KernelProvider, place: torch.device) -> None:
    """An output that is a part of a larger array leaves the rest of it alone, and strides are followed."""
    inputs = on(attention(LENS, 2, (BF16, BF16)), place)
    wide = torch.full((len(LENS), 4, 32), 7.0, device=place)
    part = SparseAttention(
        q=inputs.q,
        kv_cache=inputs.kv_cache,
        kv_indptr=inputs.kv_indptr,
        kv_indices=inputs.kv_indices,
        out=wide[:, 1:3, :16],
        softmax_scale=inputs.softmax_scale,
    )
    kernels.run(part)
    kernels.run(inputs)
    assert torch.equal(wide[:, 1:3, :16], inputs.out)
    wide[:, 1:3, :16] = 7.0
    assert (wide == 7.0).all()
