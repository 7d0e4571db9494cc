"""The whole backend through the aiter double, and persistent work that is planned anew whenever an input changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.backends.sparse.config import SparseConfig
from mla_contract.backends.sparse.indexer import IndexerInputs
from mla_contract.backends.sparse.workspace import LocalWorkspace
from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.clauses.work_plan import check_work_metadata
from mla_contract.contract.schema.provider import IndexerCacheFormat, KernelProvider, KeyLayout, WriteIndexerK
from mla_contract.contract.step.trace import BuildTrace
from mla_contract.errors import NoProvider
from mla_contract.runtime.check import check_metadata
from mla_contract.testing.aiter_double import install
from mla_contract.testing.records import PlainBatch
from tests.backends.rocm_sparse.aiter_cases import BF16, BF16_TOLERANCE, FP8, FP8_TOLERANCE, provider
from tests.backends.sparse.steps import REFERENCE, step_batch
from tests.backends.whole import WholeRocmSparse

ARCH = "gfx950"
RELEASES = ("0.1.12", "0.1.16", "0.1.18", "0.1.20")
CONFIG = SparseConfig(
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_model_len=256,
    max_capture_size=8,
    block_size=16,
    topk_tokens=32,
    num_heads=16,
    index_heads=32,
    index_format=IndexerCacheFormat(head_dim=128, fp8_dtype=FP8[ARCH], layout=KeyLayout.SHUFFLE),
)
BATCHES = {
    "decodes": ((1, 1, 1), (31, 32, 90)),
    "padded": ((1, 1, 0), (31, 90, 0)),
    "mixed": ((1, 1, 7, 20), (31, 90, 60, 20)),
}


def inputs_of(of: PlainBatch, config: SparseConfig) -> tuple[IndexerInputs, Tensor, Tensor]:
    """Return the indexer's inputs, queries and cache in aiter's geometry, quantised where aiter wants it."""
    generator = torch.Generator().manual_seed(of.num_actual_tokens)
    blocks, tokens, format = int(of.block_table_tensor.max()) + 1, of.num_actual_tokens, config.index_format
    fp8 = format.fp8_dtype
    assert fp8 is not None
    cache = torch.zeros(blocks, config.block_size, format.width, dtype=torch.uint8)
    before = torch.randn(blocks * config.block_size, format.head_dim, generator=generator)
    slots = torch.arange(len(before))
    ReferenceProvider().run(WriteIndexerK(k=before, slot_mapping=slots, cache=cache, format=format))
    q = torch.randn(tokens, config.index_heads, format.head_dim, generator=generator).to(fp8)
    keys = torch.randn(tokens, format.head_dim, generator=generator).bfloat16()
    weights = torch.randn(tokens, config.index_heads, generator=generator)
    kv = torch.randn(blocks * config.block_size, config.width, generator=generator).to(BF16)
    return (
        IndexerInputs(q, keys, weights, cache),
        torch.randn(tokens, config.num_heads, config.width, generator=generator).to(config.q_dtype),
        kv.to(config.kv_dtype),
    )


def run(config: SparseConfig, of: PlainBatch, providers: tuple[KernelProvider, ...]) -> tuple[Tensor, Tensor, object]:
    """Return selections, outputs and the record of one step on these providers."""
    workspace = LocalWorkspace()
    made = WholeRocmSparse(config, workspace, providers=providers)
    made.profile()
    workspace.lock()
    metadata, indexer = made.builder.build_pair(of)
    known = {"batch": of, "declaration": made.declaration, "facts": config.facts}
    assert check_metadata(metadata, **known, level=Level.VALUES) == ()  # type: ignore[arg-type]
    inputs, q, kv = inputs_of(of, config)
    topk = torch.full((of.num_actual_tokens, config.topk_tokens), -7, dtype=torch.int32)
    made.indexer.run(inputs, indexer, topk)
    scales: dict[str, Any] = {}
    if config.kv_dtype.itemsize == 1:
        scales = {"q_scale": torch.tensor([0.75]), "kv_scale": torch.tensor([1.25])}
    return topk, made.attention.forward_mqa(q, kv, topk, metadata, **scales), metadata


@contextmanager
def aiter(release: str, arch: str = ARCH) -> Iterator[tuple[KernelProvider, ...]]:
    """Install the double, and yield the aiter provider with the reference behind it."""
    with install(release, arch):
        yield (provider(arch), *REFERENCE)


@pytest.mark.parametrize("persistent", [False, True], ids=["plain", "persistent"])
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("release", RELEASES)
def test_backend_through_aiter_equals_reference(release: str, name: str, persistent: bool) -> None:
    """At four releases the whole backend selects what the reference selects, and its outputs agree."""
    of = step_batch(*BATCHES[name], CONFIG)
    wanted, wanted_out, _ = run(CONFIG, of, REFERENCE)
    with aiter(release) as providers:
        topk, out, metadata = run(replace(CONFIG, persistent=persistent), of, providers)
    for got, right in zip(topk.tolist(), wanted.tolist(), strict=True):
        assert set(got) == set(right)
    assert float((out.float() - wanted_out.float()).abs().max()) < BF16_TOLERANCE
    assert (getattr(metadata, "work", None) is not None) == persistent


CASES = {
    "gfx942": ("gfx942", 16, BF16, False),
    "gfx942, wide, persistent": ("gfx942", 128, BF16, True),
    "gfx950, wide": ("gfx950", 128, BF16, False),
    "gfx950, quantised cache": ("gfx950", 16, FP8["gfx950"], True),
    "gfx942, quantised cache, wide": ("gfx942", 128, FP8["gfx942"], True),
}
"""GPU, query heads, element type of queries and cache, and whether work is planned ahead."""


@pytest.mark.parametrize("case", CASES)
def test_backend_other_gpu_heads_and_cache_equal_reference(case: str) -> None:
    """On both GPUs, with 16 and 128 heads and with a quantised cache, selections and outputs are the reference's."""
    arch, heads, dtype, persistent = CASES[case]
    format = replace(CONFIG.index_format, fp8_dtype=FP8[arch])
    config = replace(CONFIG, num_heads=heads, q_dtype=dtype, kv_dtype=dtype, index_format=format)
    of = step_batch(*BATCHES["mixed"], config)
    wanted, wanted_out, _ = run(config, of, REFERENCE)
    with install("0.1.20", arch) as double:
        topk, out, metadata = run(replace(config, persistent=persistent), of, (provider(arch), *REFERENCE))
        assert {"mla_decode_fwd", "indexer_k_quant_and_cache", "top_k_per_row_decode"} <= set(double.names())
    assert [set(row) for row in topk.tolist()] == [set(row) for row in wanted.tolist()]
    tolerance = BF16_TOLERANCE if dtype is BF16 else FP8_TOLERANCE
    assert float((out.float() - wanted_out.float()).abs().max()) < tolerance
    assert float(wanted_out.float().abs().max()) > 10 * BF16_TOLERANCE
    assert (getattr(metadata, "work", None) is not None) == persistent


def test_backend_newest_release_runs_every_operation_but_the_map_on_aiter() -> None:
    """With the newest release only the map from positions to slots is left to another provider."""
    of = step_batch(*BATCHES["mixed"], CONFIG)
    with install("0.1.20", ARCH) as double:
        run(CONFIG, of, (provider(ARCH), *REFERENCE))
        names = set(double.names())
    assert names >= {
        "indexer_k_quant_and_cache",
        "cp_gather_indexer_k_quant_cache",
        "fp8_mqa_logits",
        "deepgemm_fp8_paged_mqa_logits",
        "top_k_per_row_prefill",
        "top_k_per_row_decode",
        "mla_decode_fwd",
    }


def test_persistent_work_each_changed_input_plans_anew_and_equal_inputs_do_not() -> None:
    """Lengths beyond top-k are equal inputs; shorter lengths, another padded batch or other queries are not."""
    steps = [
        (((1, 1), (90, 90)), False),
        (((1, 1), (91, 95)), True),
        (((1, 1), (91, 20)), False),
        (((1, 1, 0), (91, 20, 0)), False),
        (((1, 7), (91, 95)), False),
        (((8,), (95,)), False),
    ]
    config = replace(CONFIG, persistent=True)
    with aiter("0.1.20") as providers:
        made = WholeRocmSparse(config, LocalWorkspace(), providers=providers)
        work = made.builder.work
        assert work is not None
        for lens, reused in steps:
            of = step_batch(*lens, config)
            metadata = made.builder.build(of)
            assert (work.last_reuse is not None) is reused, lens
            assert metadata.work is not None
            assert check_work_metadata(metadata.work, metadata.work.kv_indptr) == ()
            reuse = None if work.last_reuse is None else (work.last_reuse,)
            assert check_metadata(metadata, batch=of, trace=BuildTrace(reuse=reuse)) == ()


def test_persistent_work_of_plain_decodes_needs_no_plan() -> None:
    """The short way knows what work is planned for; a step with a prompt is planned."""
    config = replace(CONFIG, persistent=True)
    with aiter("0.1.20") as providers:
        builder = WholeRocmSparse(config, LocalWorkspace(), providers=providers).builder
        for lens, plain in ((((1, 1), (90, 20)), True), (((1, 7), (91, 95)), False)):
            step = builder.lowering.step(step_batch(*lens, config))
            assert builder.build_step(step).work is not None
            assert (step.known_plan is None) is plain


def test_persistent_work_batches_of_other_sizes_share_one_memory() -> None:
    """A smaller batch's work is the leading part of the largest one's, so that captured graphs stay valid."""
    config = replace(CONFIG, persistent=True)
    with aiter("0.1.20") as providers:
        builder = WholeRocmSparse(config, LocalWorkspace(), providers=providers).builder
        small, large = (builder.build(step_batch((1,) * count, (90,) * count, config)).work for count in (2, 8))
    assert small is not None and large is not None
    assert small.work_info_set.data_ptr() == large.work_info_set.data_ptr()
    assert len(small.kv_indptr) == 3 and len(large.kv_indptr) == 9


def test_persistent_work_without_a_provider_says_why() -> None:
    """The reference plans no work: a configuration that wants some is refused with the reason."""
    with pytest.raises(NoProvider, match="needs no work plan"):
        WholeRocmSparse(replace(CONFIG, persistent=True), LocalWorkspace(), providers=REFERENCE)
    assert WholeRocmSparse(CONFIG, LocalWorkspace(), providers=REFERENCE).builder.work is None
