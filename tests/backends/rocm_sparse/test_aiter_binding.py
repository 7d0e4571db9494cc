"""Binding by keyword: which releases the provider takes, and what it says of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mla_contract.backends.kernels.aiter import AiterProvider
from mla_contract.backends.kernels.aiter.binding import AiterCall
from mla_contract.contract.schema.persistent_work import WorkConfig
from mla_contract.contract.schema.provider import KeyLayout, Operation, SizeWork, TopkRows
from mla_contract.testing.aiter_double import RELEASES, install
from tests.backends.kernels.cases import Case
from tests.backends.rocm_sparse.aiter_cases import BF16, FNUZ, inputs, provider
from tests.backends.rocm_sparse.test_aiter_indexer import chunk, write


def topk(k: int, *, starts: bool = True, stable: bool = False) -> TopkRows:
    """Return a small selection."""
    none = torch.zeros(2, dtype=torch.int32)
    return TopkRows(
        logits=torch.zeros(2, 4096),
        starts=none if starts else None,
        ends=none,
        topk=k,
        out=torch.zeros(2, k, dtype=torch.int32),
        stable=stable,
    )


def refusals(operation: Operation[Any], arch: str = "gfx942") -> dict[str, str]:
    """Return the reason of every release that cannot run an operation."""
    found = {}
    for release in RELEASES:
        with install(release, arch):
            reason = provider(arch).reason(operation)
        if reason is not None:
            found[release] = reason
    return found


def test_attention_binds_since_kv_last_page_lens() -> None:
    """0.1.11 plans without ``kv_last_page_lens`` and is refused for it by name; every later release binds."""
    missing = "this aiter's get_mla_metadata_v1 has no parameter 'kv_last_page_lens'"
    assert refusals(inputs(16)) == {"0.1.11": missing}


def test_attention_lse_binds_in_charted_releases() -> None:
    """The LSE with 16 heads on gfx942 needs the kernel without work, which is charted since ``causal``."""
    found = refusals(inputs(16, lse=True), "gfx950")
    assert list(found) == list(RELEASES[:-1]) and "'causal'" in found["0.1.19"]


def test_shuffled_cache_binds_since_preshuffle() -> None:
    """Releases without ``preshuffle`` write the normal layout only."""
    case = Case((20,), 16)
    missing = "this aiter's indexer_k_quant_and_cache has no parameter 'preshuffle'"
    assert refusals(write(case, "gfx942", KeyLayout.SHUFFLE)[0]) == {"0.1.11": missing, "0.1.12": missing}
    assert refusals(write(case, "gfx942", KeyLayout.NORMAL)[0]) == {}


def test_topk_binds_since_k_and_stable() -> None:
    """Without ``k`` only 2048 from column 0 is known to be right; ``stable`` came last."""
    missing = "this aiter's top_k_per_row_prefill has no parameter "
    old = ("0.1.11", "0.1.12", "0.1.13")
    assert refusals(topk(512)) == dict.fromkeys(old, missing + "'k'")
    assert refusals(topk(2048)) == dict.fromkeys(old, missing + "'k'")
    assert refusals(topk(2048, starts=False)) == {}
    assert list(refusals(topk(512, starts=False))) == list(old)
    stable = refusals(topk(512, stable=True))
    assert list(stable) == list(RELEASES[:-1]) and stable["0.1.14"] == missing + "'stable'"


def test_chunk_logits_on_gfx942_bind_where_flydsl_is_exported() -> None:
    """gfx942 scores through FlyDSL, which is exported since 0.1.18; gfx950 binds everywhere."""
    found = refusals(chunk(FNUZ))
    assert list(found) == list(RELEASES[:7]) and "flydsl_fp8_mqa_logits" in found["0.1.17"]
    assert refusals(chunk(torch.float8_e4m3fn), "gfx950") == {}


@pytest.mark.parametrize("name", ["dtype_q", "dtype_kv"])
def test_planner_without_element_types_is_refused_only_where_it_matters(name: str) -> None:
    """64 fp8 heads on gfx942 would be folded differently by planner and kernel; 64 bf16 heads would not."""
    fp8 = WorkConfig(num_rows=4, num_heads=64, q_dtype=FNUZ, kv_dtype=FNUZ)
    with install("0.1.20", "gfx942", lacking={"get_mla_metadata_v1": (name,)}):
        reason = provider("gfx942").reason(SizeWork(config=fp8))
        assert reason is not None and f"no parameter {name!r}" in reason and "fold heads differently" in reason
        assert provider("gfx942").reason(SizeWork(config=replace(fp8, q_dtype=BF16, kv_dtype=BF16))) is None
    with install("0.1.20", "gfx942"):
        assert provider("gfx942").reason(SizeWork(config=fp8)) is None


def test_call_demanding_an_unknown_parameter_is_refused() -> None:
    """A parameter without a default that the provider does not pass is named; with a default it is left alone."""

    def function(a: int, b: int, c: int = 3) -> int:
        return a + b + c

    assert AiterCall("function", (), {"a": 1, "b": 1}).binding_reason(function) is None
    assert "demands parameter 'b'" in str(AiterCall("function", (), {"a": 1}).binding_reason(function))
    assert "no parameter 'd'" in str(AiterCall("function", (), {"a": 1, "b": 1, "d": 1}).binding_reason(function))


def test_reduce_call_binds_in_both_orders() -> None:
    """Keywords bind ``mla_reduce_v1`` before and after ``num_kv_splits`` was put in the middle."""
    required = dict.fromkeys(
        ("partial_output", "partial_lse", "reduce_indptr", "reduce_final_map", "reduce_partial_map", "final_output"), 0
    )
    call = AiterCall("mla_reduce_v1", ("aiter",), {**required, "max_seqlen_q": 1}, {"num_kv_splits": 0})
    positional = AiterCall("mla_reduce_v1", ("aiter",), {**required, "max_seqlen_q": 1})
    reasons = {}
    for release in ("0.1.12", "0.1.16"):
        with install(release, "gfx942"):
            assert call.reason() is None
            reasons[release] = positional.reason()
    assert reasons["0.1.12"] is None and "num_kv_splits" in str(reasons["0.1.16"])


def test_provider_without_aiter_or_device_says_so() -> None:
    """No GPU, no aiter, tensors elsewhere and an unknown arch have a reason each."""
    case = inputs(16)
    assert AiterProvider().reason(case) == "this PyTorch is built without ROCm"
    assert "aiter cannot be imported" in str(provider("gfx950").reason(topk(4)))
    with install("0.1.20", "gfx942"):
        run = provider("gfx942")
        assert "q is on meta" in str(run.reason(replace(case, q=case.q.to("meta"))))
        assert run.reason(case) is None


def test_provider_unknown_arch_names_the_known() -> None:
    """An arch without kernels for pages of one is refused with those that have them."""
    from mla_contract.backends.kernels.aiter import AiterDevice

    with install("0.1.20", "gfx1250"):
        reason = AiterProvider(AiterDevice("gfx1250", "cpu")).reason(inputs(16))
    assert reason == "aiter has no kernel for this path on gfx1250; it has on gfx942, gfx950"
