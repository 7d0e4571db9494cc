"""Sparse attention through the provider and the double, against the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mla_contract.contract.schema.persistent_work import WorkConfig
from mla_contract.errors import NoProvider
from mla_contract.testing.aiter_double import install
from tests.backends.rocm_sparse.aiter_cases import (
    BF16,
    BF16_TOLERANCE,
    FN,
    FP8,
    FP8_TOLERANCE,
    LENS,
    LSE_TOLERANCE,
    UNITS,
    differences,
    given_work,
    inputs,
    provider,
)

HEADS = [1, 8, 16, 32, 64, 96, 128]


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("release", ["0.1.12", "0.1.16", "0.1.20"])
def test_attention_bf16_equals_reference(release: str, arch: str, heads: int) -> None:
    """Every head count agrees with the reference in every release that binds, empty rows and -1 included."""
    with install(release, arch):
        assert differences(provider(arch), inputs(heads, invalid=True))[0] < BF16_TOLERANCE


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("narrow_q", [False, True])
def test_attention_fp8_equals_reference(arch: str, heads: int, narrow_q: bool) -> None:
    """Quantised caches agree, with and without quantised queries, in the flavour of the arch and with both scales."""
    tolerance = FP8_TOLERANCE if narrow_q else BF16_TOLERANCE
    with install("0.1.20", arch):
        case = inputs(heads, FP8[arch] if narrow_q else BF16, FP8[arch])
        assert differences(provider(arch), case)[0] < tolerance


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_attention_given_work_equals_reference_and_plain(arch: str, heads: int) -> None:
    """The caller's work, filled for the batch, yields what the call without work yields; one config makes all calls."""
    with install("0.1.20", arch) as double:
        case = inputs(heads)
        config = WorkConfig(num_rows=len(LENS), num_heads=heads, q_dtype=BF16, kv_dtype=BF16, max_split_per_batch=8)
        work = given_work(provider(arch), config, case.kv_indptr)
        case = inputs(heads, work=work)
        assert differences(provider(arch), case)[0] < BF16_TOLERANCE
        size, fill, kernel = (arguments for _, arguments in double.calls)
    padded = -(-heads // 16) * 16
    assert (size["num_head_qo"], fill["num_heads_per_head_k"], kernel["q"].shape[1]) == (padded,) * 3
    assert size["q_dtype"] is fill["dtype_q"] is kernel["q"].dtype
    assert size["kv_dtype"] is fill["dtype_kv"] is kernel["kv_buffer"].dtype
    assert size["max_split_per_batch"] == fill["max_split_per_batch"] == 8
    assert fill["seqlens_kv_indptr"] is kernel["kv_indptr"] and kernel["work_indptr"] is work.work_indptr


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("fp8", [False, True])
def test_attention_lse_equals_reference_or_says_why(arch: str, heads: int, fp8: bool) -> None:
    """The LSE is natural, float32 and -inf for empty rows wherever a kernel writes it, and refused elsewhere."""
    dtype = FP8[arch] if fp8 else BF16
    tolerance = FP8_TOLERANCE if fp8 else BF16_TOLERANCE
    with install("0.1.20", arch):
        case = inputs(heads, dtype, dtype, lse=True, invalid=True)
        if arch == "gfx942" and heads == (32 if fp8 else 64) or (arch, heads) == ("gfx942", 96):
            assert "writes the LSE" in str(provider(arch).reason(case))
            return
        off, lse_off = differences(provider(arch), case)
    assert off < tolerance and lse_off < LSE_TOLERANCE


@pytest.mark.parametrize("heads", [3, 16, 32])
def test_attention_sinks_equal_reference(heads: int) -> None:
    """Sinks are applied through the LSE."""
    with install("0.1.20", "gfx950"):
        assert differences(provider("gfx950"), inputs(heads, sinks=True))[0] < BF16_TOLERANCE


@pytest.mark.parametrize("lens", [[5], [0], [0] * 40, [3] * 1024, [0, 3, 1, 0] * 256])
@pytest.mark.parametrize("heads", [16, 48])
def test_attention_batch_sizes_equal_reference(lens: list[int], heads: int) -> None:
    """One row, only empty rows, and 1,024 rows agree on either side of the gate at 32 rows."""
    with install("0.1.20", "gfx950"):
        assert differences(provider("gfx950"), inputs(heads, lens=lens))[0] < BF16_TOLERANCE


def test_attention_no_rows_calls_nothing() -> None:
    """A batch without a row never reaches aiter."""
    with install("0.1.20", "gfx950") as double:
        provider("gfx950").run(inputs(16, lens=[]))
        assert double.names() == []


@pytest.mark.parametrize("invalid", [False, True])
def test_attention_tables_hold_no_empty_row_and_no_invalid_slot(invalid: bool) -> None:
    """What reaches the kernel has an entry in every row and a slot in every entry."""
    with install("0.1.20", "gfx942") as double:
        provider("gfx942").run(inputs(16, invalid=invalid))
        name, arguments = double.calls[-1]
    assert name == "mla_decode_fwd"
    assert (arguments["kv_indptr"].diff() > 0).all()
    assert (arguments["kv_indices"][: int(arguments["kv_indptr"][-1])] >= 0).all()


def test_attention_coarse_kernel_is_planned_in_its_granularity() -> None:
    """64 fp8 heads on gfx942 are planned in blocks of 32; the control, 128 heads, in blocks of 16."""
    found = {}
    with install("0.1.20", "gfx942", num_cus=UNITS["gfx942"]) as double:
        for heads in (64, 96):
            provider("gfx942").run(inputs(heads, FP8["gfx942"], FP8["gfx942"]))
            found[heads] = next(a["kv_granularity"] for name, a in reversed(double.calls) if "metadata_v1" in name)
    assert found == {64: 32, 96: 16}


def test_attention_foreign_work_is_refused() -> None:
    """Work of another head count, row count or element type is refused, as is -1 with work; its own work is taken."""
    with install("0.1.20", "gfx950"):
        run = provider("gfx950")
        config = WorkConfig(num_rows=len(LENS), num_heads=16, q_dtype=BF16, kv_dtype=BF16)
        good = inputs(16)
        work = given_work(run, config, good.kv_indptr)
        assert run.reason(replace(good, work=work)) is None
        assert "num_heads=16, the call has 32" in str(run.reason(inputs(32, work=work)))
        assert "num_rows=7, the call has 1" in str(run.reason(inputs(16, lens=[3], work=work)))
        assert "kv_dtype" in str(run.reason(inputs(16, BF16, FN, work=work)))
        assert "-1 entries" in str(run.reason(inputs(16, invalid=True, work=work)))
        assert "with_lse" in str(run.reason(inputs(16, lse=True, work=work)))


def test_attention_unknown_shapes_and_types_are_refused_before_anything_runs() -> None:
    """Each constraint has its own reason, and running raises it with nothing written."""
    with install("0.1.20", "gfx950") as double:
        run, good = provider("gfx950"), inputs(16)
        assert run.reason(good) is None
        narrow = replace(good, q=good.q[..., :64].contiguous(), kv_cache=good.kv_cache[:, :64].contiguous())
        wrong = {
            "width 64": narrow,
            "aiter writes bfloat16": replace(good, out=good.out.float()),
            "q float16": replace(good, q=good.q.half()),
            "kv_indices is torch.int64": replace(good, kv_indices=good.kv_indices.long()),
            "q_scale is given": replace(good, q_scale=torch.ones(1)),
            "float8_e4m3fnuz": inputs(16, BF16, FP8["gfx942"]),
            "129 heads": inputs(129),
        }
        for reason, case in wrong.items():
            assert reason in str(run.reason(case)), reason
            with pytest.raises(NoProvider, match="aiter"):
                run.run(case)
            assert (case.out == 9.0).all()
        assert double.calls == []
