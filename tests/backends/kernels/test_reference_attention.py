"""The reference attention against a naive dense mask."""

from __future__ import annotations

import hashlib

import pytest
import torch

from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.contract.schema.provider import SparseAttention
from tests.backends.kernels.cases import TOPK, naive_attention, ragged

WIDTH, V_DIM, SCALE = 24, 16, 0.3
LENS = [TOPK - 1, TOPK, TOPK + 1, 0, 1, 5, 0]


def attend(lens: list[int], heads: int, dtype: torch.dtype = torch.float32, sinks: bool = False) -> tuple[float, float]:
    """Return the largest differences of output and LSE from the naive statement."""
    torch.manual_seed(1)
    kv = torch.randn(80, WIDTH).to(dtype)
    q = torch.randn(len(lens), heads, WIDTH).to(dtype)
    indptr, indices = ragged(lens, 80)
    indices[::7] = -1
    sink = torch.randn(heads) if sinks else None
    out_dtype = dtype if dtype.itemsize > 1 else torch.float32
    out = torch.full((len(lens), heads, V_DIM), torch.nan, dtype=out_dtype)
    lse = torch.full((len(lens), heads), torch.nan)
    inputs = SparseAttention(
        q=q,
        kv_cache=kv,
        kv_indptr=indptr,
        kv_indices=indices,
        out=out,
        softmax_scale=SCALE,
        lse=lse,
        sinks=sink,
    )
    ReferenceProvider().run(inputs)
    wanted, wanted_lse = naive_attention(q.float(), kv.float(), indptr, indices, V_DIM, SCALE, sink)
    empty = torch.isinf(wanted_lse)
    assert torch.equal(empty, torch.isneginf(lse))
    difference = (out.double() - wanted).abs().max() if len(lens) else torch.zeros(())
    return float(difference), float((lse.double() - wanted_lse)[~empty].abs().max() if (~empty).any() else 0.0)


@pytest.mark.parametrize("heads", [1, 8, 16, 32, 64, 96, 128])
def test_attention_any_heads_equals_naive(heads: int) -> None:
    """Every head count agrees with the dense mask within 1e-5, empty rows and -1 entries included."""
    assert max(attend(LENS, heads)) < 1e-5


@pytest.mark.parametrize("num_rows", [1, 1024])
def test_attention_any_row_count_equals_naive(num_rows: int) -> None:
    """One row and 1,024 rows agree."""
    assert max(attend([LENS[row % len(LENS)] for row in range(num_rows)], 2)) < 1e-5


def test_attention_all_padding_is_zero() -> None:
    """A batch of empty rows yields zeros."""
    assert attend([0, 0, 0], 4) == (0.0, 0.0)


def test_attention_sinks_equal_naive() -> None:
    """A sink takes part in the sum and leaves the LSE alone."""
    assert max(attend(LENS, 4, sinks=True)) < 1e-5


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.bfloat16, 8e-3),
        (torch.float16, 1e-3),
        (torch.float8_e4m3fn, 1e-5),
        (torch.float8_e4m3fnuz, 1e-5),
    ],
)
def test_attention_narrow_types_equal_naive(dtype: torch.dtype, tolerance: float) -> None:
    """Narrow inputs are exact, so only the output's rounding remains."""
    assert max(attend(LENS, 4, dtype)) < tolerance


def test_attention_scales_multiply_scores_and_values() -> None:
    """Both scales enter the scores, and the cache's scale enters the output."""
    torch.manual_seed(2)
    q, kv = torch.randn(3, 2, WIDTH), torch.randn(9, WIDTH)
    indptr, indices = ragged([4, 5, 1], 9)
    out = torch.empty(3, 2, V_DIM)
    scales = torch.tensor([0.5]), torch.tensor([3.0])
    ReferenceProvider().run(
        SparseAttention(
            q=q,
            kv_cache=kv,
            kv_indptr=indptr,
            kv_indices=indices,
            out=out,
            softmax_scale=SCALE,
            q_scale=scales[0],
            kv_scale=scales[1],
        )
    )
    wanted, _ = naive_attention(q, kv, indptr, indices, V_DIM, SCALE * 1.5, kv_scale=3.0)
    assert (out.double() - wanted).abs().max() < 1e-5


def test_attention_row_alone_is_bitwise_the_row_in_a_batch() -> None:
    """A row's bits do not depend on the rows that are computed with it."""
    torch.manual_seed(4)
    lens = [33, 7, 64, 40, 1, 12, 64, 31] * 8
    q, kv = torch.randn(len(lens), 3, WIDTH), torch.randn(200, WIDTH)
    indptr, indices = ragged(lens, 200)

    def digest(cuts: list[int]) -> str:
        out = torch.empty(len(lens), 3, V_DIM)
        for first, last in zip(cuts[:-1], cuts[1:], strict=True):
            ReferenceProvider().run(
                SparseAttention(
                    q=q[first:last],
                    kv_cache=kv,
                    kv_indptr=indptr[first : last + 1] - indptr[first],
                    kv_indices=indices[int(indptr[first]) :],
                    out=out[first:last],
                    softmax_scale=SCALE,
                )
            )
        return hashlib.sha256(out.numpy().tobytes()).hexdigest()

    assert digest([0, 64]) == digest([0, 1, 5, 30, 64]) == digest(list(range(65)))
