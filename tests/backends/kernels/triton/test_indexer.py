"""Logits and top-k against the reference; columns outside the windows are unspecified, and never looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from mla_contract.contract.schema.provider import (
    ChunkLogits,
    IndexerCacheFormat,
    KernelProvider,
    KeyLayout,
    PagedLogits,
    TopkRows,
    WriteIndexerK,
    padded_columns,
)
from tests.backends.kernels.cases import Case
from tests.backends.kernels.triton.cases import REFERENCE, on

STARTS = torch.tensor([0, 0, 5, 100, 299, 0, 7, -3, 290]).int()
ENDS = torch.tensor([1, 300, 5, 180, 300, 0, 6, 4, 999]).int()

FP8_ERROR = 1e-3
"""Of the largest logit: products are exact, the matrix units add them up in less than float32."""


def chunk(heads: int, dim: int, dtype: torch.dtype) -> ChunkLogits:
    """Return a chunk with clamped and empty windows; quantised keys have scales."""
    generator = torch.Generator().manual_seed(heads)
    q = torch.randn(9, heads, dim, generator=generator).to(dtype)
    k = torch.randn(300, dim, generator=generator).to(dtype)
    scale = torch.rand(300, generator=generator) + 0.5 if dtype.itemsize == 1 else None
    weights = torch.randn(9, heads, generator=generator)
    return ChunkLogits(q=q, k=k, k_scale=scale, weights=weights, starts=STARTS, ends=ENDS)


def worst(got: Tensor, wanted: Tensor, windows: list[tuple[int, int]]) -> float:
    """Return the largest difference inside the windows over the largest value there."""
    differences = [0.0]
    for row, (start, end) in enumerate(windows):
        if start < end:
            differences.append(float((got[row, start:end].cpu() - wanted[row, start:end]).abs().max()))
    inside = [wanted[row, start:end].abs().max() for row, (start, end) in enumerate(windows) if start < end]
    return max(differences) / float(torch.stack(inside).max())


@pytest.mark.parametrize(("heads", "dim"), [(64, 128), (4, 32), (5, 24), (1, 16), (32, 128)])
def test_chunk_logits_equal_reference(
    kernels: KernelProvider, place: torch.device, flavours: tuple[torch.dtype, ...], heads: int, dim: int
) -> None:
    """Every window agrees in every element type, and the row stride is aligned."""
    windows = [(max(start, 0), min(end, 300)) for start, end in zip(STARTS.tolist(), ENDS.tolist(), strict=True)]
    dtypes = (torch.bfloat16, torch.float32, *flavours)
    for dtype in dtypes[-1:] if place.type == "cpu" and dim == 128 else dtypes:
        inputs = chunk(heads, dim, dtype)
        wanted, got = REFERENCE.run(inputs), kernels.run(on(inputs, place))
        assert got.stride(0) % 256 == 0 and got.shape == wanted.shape
        assert worst(got, wanted, windows) < (FP8_ERROR if dtype.itemsize == 1 else 1e-5), dtype


@pytest.mark.parametrize(("heads", "dim"), [(4, 32), (64, 128)])
def test_chunk_logits_bits_do_not_depend_on_the_cut(
    kernels: KernelProvider, place: torch.device, heads: int, dim: int
) -> None:
    """A row has the same bits alone, in a part and in the whole chunk."""
    if place.type == "cpu":
        pytest.skip("the interpreter multiplies with another library routine for another shape")
    whole = on(chunk(heads, dim, torch.bfloat16), place)
    logits = kernels.run(whole)
    for cut in (slice(1, 2), slice(3, 9)):
        part = ChunkLogits(
            q=whole.q[cut],
            k=whole.k,
            k_scale=None,
            weights=whole.weights[cut],
            starts=whole.starts[cut],
            ends=whole.ends[cut],
        )
        found = kernels.run(part)
        for row in range(len(found)):
            start, end = int(part.starts[row].clamp(min=0)), int(part.ends[row].clamp(max=300))
            assert torch.equal(found[row, start:end], logits[cut][row, start:end])


@pytest.mark.parametrize("next_n", [1, 2, 3])
@pytest.mark.parametrize("layout", list(KeyLayout))
def test_paged_logits_equal_reference(
    kernels: KernelProvider, place: torch.device, flavours: tuple[torch.dtype, ...], next_n: int, layout: KeyLayout
) -> None:
    """Every decode row sees its own prefix, and columns behind the request's keys keep their poison."""
    case, lens = Case((31, 0, 101), 16, next_n), torch.tensor([31, 0, 101]).int()
    quantised = [IndexerCacheFormat(head_dim=32, fp8_dtype=one, group=32, layout=layout) for one in flavours]
    plain = [IndexerCacheFormat(head_dim=32, fp8_dtype=None)] if layout is KeyLayout.NORMAL else []
    for format in quantised + plain:
        generator = torch.Generator().manual_seed(next_n)
        keys = torch.randn(132, 32, generator=generator)
        kind = torch.float32 if format.fp8_dtype is None else torch.uint8
        cache = torch.zeros(case.num_blocks, 16, format.width, dtype=kind)
        REFERENCE.run(WriteIndexerK(k=keys, slot_mapping=case.slot_mapping(), cache=cache, format=format))
        wanted = PagedLogits(
            q=torch.randn(3, next_n, 4, 32, generator=generator).to(format.fp8_dtype or torch.float32),
            cache=cache,
            format=format,
            weights=torch.randn(3 * next_n, 4, generator=generator),
            context_lens=lens,
            block_table=case.block_table(),
            max_model_len=101,
            out=torch.full((3 * next_n, padded_columns(101)), torch.nan),
        )
        got = on(wanted, place)
        kernels.run(got)
        REFERENCE.run(wanted)
        seen = [max(0, int(lens[row // next_n]) - next_n + row % next_n + 1) for row in range(3 * next_n)]
        assert worst(got.out, wanted.out, [(0, end) for end in seen]) < FP8_ERROR
        for row in range(3 * next_n):
            assert got.out[row, int(lens[row // next_n]) :].isnan().all()


def test_topk_equals_reference_ties_and_all(kernels: KernelProvider, place: torch.device) -> None:
    """Windows, ties, signed zeros, infinities and NaN: the same set, and ties go to the smaller position."""
    logits = torch.randint(0, 50, (8, 700), generator=torch.Generator().manual_seed(2)).float()
    logits[1, 100:600] = torch.randn(500, generator=torch.Generator().manual_seed(3))
    logits[2, ::2], logits[4] = -0.0, 0.0
    logits[3] = torch.randn(700, generator=torch.Generator().manual_seed(4)) - 9
    logits[3, 5], logits[3, 6], logits[3, 8:60] = torch.inf, torch.nan, -torch.inf
    wanted = TopkRows(
        logits=logits,
        starts=torch.tensor([0, 100, 0, 3, -2, 600, 0, 9]).int(),
        ends=torch.tensor([700, 600, 400, 700, 650, 620, 9999, 2]).int(),
        topk=32,
        out=torch.full((8, 32), -5, dtype=torch.int32),
        stable=True,
    )
    got = on(wanted, place)
    kernels.run(got)
    REFERENCE.run(wanted)
    assert torch.equal(got.out.cpu(), wanted.out)


def wide_rows(columns: int, topk: int, rows: int = 11) -> TopkRows:
    """Return wide rows: hard windows and hard values; what is outside the windows would be selected first."""
    logits = torch.randn(11, columns, generator=torch.Generator().manual_seed(topk)) - 3
    column, low = torch.arange(columns), columns // 7
    windows = [(low, columns - 9), (-4, columns + 9), (low, columns - 9), (0, columns), (5, columns), (0, columns - 2)]
    windows += [(9, 2), (low, low + topk - 1), (low, low + topk), (low, low + topk + 1), (low, low + columns // 3)]
    # All that count come last: first ties, of which the last do not, and then greater ones.
    logits[0] = (column >= columns - 50 - topk).float() + (column >= columns - 9 - topk // 2)
    logits[1], logits[2::8], logits[4, 20:] = (logits[1] * 2).round(), -1.5, -torch.inf
    logits[5], logits[5, ::3], logits[5, ::17] = 0.0, -0.0, 1e-40
    logits[5, 7 :: columns // 5], logits[5, columns // 2 :: 90] = torch.nan, torch.inf
    for row, (start, end) in enumerate(windows):
        logits[row, : max(start, 0)] = logits[row, end:] = torch.inf
    starts, ends = (torch.tensor(bounds[:rows]).int() for bounds in zip(*windows, strict=True))
    out = torch.full((rows, topk), -5, dtype=torch.int32)
    return TopkRows(logits=logits[:rows], starts=starts, ends=ends, topk=topk, out=out, stable=True)


@pytest.mark.parametrize(
    ("launch", "topk", "rows"),
    [
        pytest.param(None, 33, 11, id="table"),
        pytest.param((64, 44), 300, 11, id="parts-of-several-blocks"),
        pytest.param((128, 22), 1, 11, id="two-parts"),
        pytest.param((16, 60), 20, 1, id="many-parts"),
        pytest.param((128, 21), 300, 11, id="one-program-a-row"),
    ],
)
def test_topk_of_wide_rows_equals_reference(
    kernels: KernelProvider,
    place: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    launch: tuple[int, int] | None,
    topk: int,
    rows: int,
) -> None:
    """However programs share rows: windows, ties across parts, signed zeros, NaN and infinities."""
    from mla_contract.backends.kernels.triton import indexer
    from mla_contract.backends.kernels.triton.launches import Launch

    times = 32 if place.type == "cuda" else 1
    if launch is not None:
        block, programs = launch
        monkeypatch.setattr(indexer, "find_launch", lambda *_: Launch(columns=block * times, programs=programs))
    wanted = wide_rows(1100 * times, topk, rows)
    # Rows of the logits stand apart, and behind the last row of the output nothing is written.
    larger = replace(wanted, logits=pad(wanted.logits, (0, 24), value=torch.inf), out=pad(wanted.out, (0, 0, 0, 1)))
    got = on(larger, place)
    kernels.run(replace(got, logits=got.logits[:, :-24], out=got.out[:rows]))
    REFERENCE.run(wanted)
    assert torch.equal(got.out.cpu(), pad(wanted.out, (0, 0, 0, 1)))


def test_topk_of_wide_rows_without_starts_equals_reference(kernels: KernelProvider, place: torch.device) -> None:
    """Windows begin with the rows, and the values before their former starts are the largest."""
    wanted = replace(wide_rows(40_000 if place.type == "cuda" else 1100, 33, 3), starts=None)
    got = on(wanted, place)
    kernels.run(got)
    REFERENCE.run(wanted)
    assert torch.equal(got.out.cpu(), wanted.out)
