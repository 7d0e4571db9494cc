"""Reasons of the Triton provider: each names the input and the limit, and its twin is accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mla_contract.contract.schema.persistent_work import WorkConfig
from mla_contract.contract.schema.provider import (
    IndexerCacheFormat,
    KernelProvider,
    MapSlots,
    SizeWork,
    TopkRows,
    WriteIndexerK,
)
from mla_contract.errors import NoProvider
from tests.backends.kernels.triton.cases import attention, on
from tests.backends.kernels.triton.test_indexer import chunk

BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kv_cache": torch.zeros(80, 25, dtype=BF16)}, "kv_cache rows have 25 elements, q has 24"),
        ({"out": torch.zeros(1, 2, 16, dtype=torch.float64)}, "out is torch.float64"),
        ({"kv_indices": torch.zeros(3, dtype=torch.int64)}, "kv_indices is torch.int64, the kernel reads torch.int32"),
        ({"q": torch.zeros(1, 2, 24, dtype=torch.int8)}, "q is torch.int8: on "),
        ({"out": torch.zeros(1, 16, 2).mT}, "out has strides (32, 1, 2): its last axis must be packed"),
        ({"sinks": torch.zeros(2, dtype=BF16)}, "sinks is torch.bfloat16"),
    ],
)
def test_attention_reason_names_the_input(
    kernels: KernelProvider, place: torch.device, changes: dict[str, Any], text: str
) -> None:
    """An input that the kernel would misread is named; the same call without it is accepted."""
    good = on(attention([1], 2, (BF16, BF16)), place)
    assert kernels.reason(good) is None
    changed = {name: value.to(place) for name, value in changes.items()}
    assert text in str(kernels.reason(replace(good, **changed)))


def test_attention_wide_latent_is_refused(kernels: KernelProvider, place: torch.device) -> None:
    """A latent part that no tile holds has a reason, and running it raises; 512 is accepted."""
    assert kernels.reason(on(attention([1], 1, (BF16, BF16), (512, 512)), place)) is None
    wide = on(attention([1], 1, (BF16, BF16), (520, 520)), place)
    assert "at most 512 values" in str(kernels.reason(wide))
    with pytest.raises(NoProvider, match="at most 512 values"):
        kernels.run(wide)


def test_indexer_reasons_name_the_input(kernels: KernelProvider, place: torch.device) -> None:
    """Index arrays and outputs of other types or layouts are named; twins are accepted."""
    scored = on(chunk(4, 32, torch.float32), place)
    assert kernels.reason(scored) is None
    assert "starts is torch.int64" in str(kernels.reason(replace(scored, starts=scored.starts.long())))
    assert "129 heads" in str(kernels.reason(on(chunk(129, 32, torch.float32), place)))
    assert kernels.reason(on(chunk(128, 128, torch.float32), place)) is None
    large = str(kernels.reason(on(chunk(128, 256, torch.float32), place)))
    assert "128 heads of 256 in torch.float32 take 131072 bytes: a tile has at most 65536" in large
    ends = torch.ones(2, dtype=torch.int32, device=place)
    out = torch.zeros(2, 8, dtype=torch.int32, device=place)
    picked = TopkRows(logits=torch.zeros(2, 9, device=place), starts=None, ends=ends, topk=4, out=out[:, :4])
    assert "out has strides (8, 1): it must be contiguous" in str(kernels.reason(picked))
    assert kernels.reason(replace(picked, out=out[:, :4].contiguous())) is None


def test_cache_reasons_name_the_limit(kernels: KernelProvider, place: torch.device) -> None:
    """A cache that does not fit its format has a reason."""
    format = IndexerCacheFormat(head_dim=32, fp8_dtype=None)
    good = WriteIndexerK(
        k=torch.zeros(2, 32),
        slot_mapping=torch.zeros(2, dtype=torch.int64),
        cache=torch.zeros(3, 4, 32),
        format=format,
    )
    assert kernels.reason(on(good, place)) is None
    bad = replace(good, format=replace(format, fp8_dtype=torch.float8_e4m3fn))
    assert "cache rows have 32 elements, the format has 36" in str(kernels.reason(on(bad, place)))
    assert "slot_mapping is torch.int32" in str(kernels.reason(on(replace(good, slot_mapping=ends()), place)))


def ends() -> torch.Tensor:
    """Return slots of the wrong type."""
    return torch.zeros(2, dtype=torch.int32)


def test_work_plans_and_split_placement_are_refused(kernels: KernelProvider, place: torch.device) -> None:
    """Work plans are another library's, and arrays on two devices have no kernel; on one they have."""
    config = WorkConfig(num_rows=1, num_heads=16, q_dtype=BF16, kv_dtype=BF16)
    assert kernels.reason(SizeWork(config=config)) == (
        "SizeWork: these kernels split rows by themselves and need no work plan"
    )
    small = torch.zeros(1, 1, dtype=torch.int32, device=place)
    mapped = MapSlots(positions=small, req_id_per_token=small[0], block_table=small, block_size=1, out=small.clone())
    assert kernels.reason(mapped) is None
    away = replace(mapped, out=torch.zeros(1, 1, dtype=torch.int32, device="meta"))
    assert "out is on meta" in str(kernels.reason(away))


def test_cpu_arrays_are_refused_unless_the_interpreter_is_asked_for() -> None:
    """By default the provider leaves the CPU to others, even where the interpreter could run there."""
    provider = pytest.importorskip("mla_contract.backends.kernels.triton", reason="Triton is not installed")
    inputs = attention([1], 2, (BF16, BF16))
    refused = provider.TritonProvider().reason(inputs)
    assert refused == "q is on the CPU: Triton's kernels run on a GPU, its interpreter only when it is asked for"
    assert refused != provider.TritonProvider(interpreted=True).reason(inputs)
