"""Builders on a GPU: no synchronisation, one copy, addresses that stay, and graphs that are replayed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from mla_contract.backends.cuda_sparse.builder import CudaSparseBuilder
from mla_contract.backends.rocm_sparse.builder import RocmSparseBuilder
from mla_contract.backends.rocm_sparse.metadata import RocmSparseMetadata
from mla_contract.backends.sparse.config import SparseConfig
from mla_contract.backends.sparse.indexer import IndexerInputs
from mla_contract.backends.sparse.indexer_metadata import SparseIndexerMetadata
from mla_contract.backends.sparse.workspace import LocalWorkspace
from mla_contract.contract.schema.provider import KernelProvider
from tests.backends.gpu.batches import StaticBatch, lens_of
from tests.backends.whole import WholeRocmSparse

LONGEST, MOST = 2048, 256
CONFIG = SparseConfig(
    max_num_seqs=MOST,
    max_num_batched_tokens=4096,
    max_model_len=LONGEST,
    max_capture_size=MOST,
    topk_tokens=512,
    indexer_rows=MOST * LONGEST,
)
BUILDERS = (RocmSparseBuilder, CudaSparseBuilder)
BF16 = torch.bfloat16


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Let PyTorch raise where the host would wait for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_watch_raises_where_the_host_waits(gpu: torch.device) -> None:
    """The watch that the other tests rely on notices a read back."""
    value = torch.ones(1, device=gpu)
    with no_synchronisation(), pytest.raises(RuntimeError, match="synchronizing"):
        value.item()


@pytest.mark.parametrize("cls", BUILDERS)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("num_reqs", [8, 64, 256])
def test_build_copies_once_and_never_waits(
    gpu: torch.device, cls: type[RocmSparseBuilder | CudaSparseBuilder], mixed: bool, num_reqs: int
) -> None:
    """Each of several steps makes exactly one host-to-device copy, and no synchronisation."""
    builder = cls(CONFIG, gpu)
    static = StaticBatch(MOST, 4096, LONGEST, gpu)
    for seed in range(4):
        of = static.step(*lens_of(num_reqs, seed, mixed=mixed, longest=LONGEST))
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as watched:
            with no_synchronisation():
                builder.build_pair(of)
            torch.cuda.synchronize()
        copies = [one.name for one in watched.events() if "Memcpy" in one.name and "cuda" not in one.name]
        assert [name for name in copies if "HtoD" in name] == copies[:1], copies
        assert len(copies) == 1, copies


@pytest.mark.parametrize("cls", BUILDERS)
def test_build_addresses_stay_over_a_thousand_steps(
    gpu: torch.device, cls: type[RocmSparseBuilder | CudaSparseBuilder]
) -> None:
    """Every array that the builder owns begins where it began, in batches of all sizes and kinds."""
    builder = cls(CONFIG, gpu)
    static = StaticBatch(MOST, 4096, LONGEST, gpu)
    seen: dict[str, set[int]] = {}
    for seed in range(1000):
        lens = lens_of(1 + seed * 37 % MOST, seed, mixed=seed % 3 == 0, longest=LONGEST)
        metadata = builder.build(static.step(*lens))
        for name, value in vars(metadata).items():
            if isinstance(value, Tensor) and value.numel():
                seen.setdefault(name, set()).add(value.data_ptr())
    assert {"req_id_per_token"} <= set(seen)
    assert {name: places for name, places in seen.items() if len(places) > 1} == {}


@pytest.mark.parametrize("num_reqs", [8, 64, 256])
def test_graph_replayed_over_changing_batches_equals_eager(
    kernels: KernelProvider, gpu: torch.device, num_reqs: int
) -> None:
    """Indexer and attention of a decode step, captured once, give the bits of eager calls for every later batch."""
    workspace = LocalWorkspace(gpu)
    made = WholeRocmSparse(CONFIG, workspace, gpu, providers=(kernels,))
    made.profile()
    workspace.lock()
    static = StaticBatch(num_reqs, num_reqs, LONGEST, gpu)
    generator = torch.Generator(gpu).manual_seed(num_reqs)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=gpu, dtype=BF16)

    keys = torch.zeros(static.num_blocks, 64, CONFIG.index_format.width, dtype=torch.uint8, device=gpu)
    flat = keys.view(len(keys), -1)
    flat[:, : 64 * 128] = normal(len(keys), 64 * 128).to(torch.float8_e4m3fn).view(torch.uint8)
    flat.view(torch.float32)[:, 64 * 128 // 4 :] = 1.0
    kv = normal(static.num_blocks * 64, 576)
    q, k = normal(num_reqs, 16, 576), normal(num_reqs, 128)
    index_q = normal(num_reqs, 64, 128).to(torch.float8_e4m3fn)
    weights = normal(num_reqs, 64).float()
    topk = torch.full((num_reqs, CONFIG.topk_tokens), -7, dtype=torch.int32, device=gpu)
    out = torch.full((num_reqs, 16, 512), torch.nan, dtype=BF16, device=gpu)

    def build(seed: int) -> tuple[RocmSparseMetadata, SparseIndexerMetadata]:
        return made.builder.build_pair(static.step(*lens_of(num_reqs, seed, mixed=False, longest=LONGEST)))

    def forward(records: tuple[RocmSparseMetadata, SparseIndexerMetadata]) -> None:
        metadata, indexer = records
        made.indexer.run(IndexerInputs(index_q, k, weights, keys), indexer, topk)
        made.attention.forward_mqa(q, kv, topk, metadata, out=out)

    records = build(0)
    forward(records)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward(records)
    previous: Tensor | None = None
    for seed in range(1, 6):
        for array in (q, k, weights):
            array.copy_(normal(*array.shape))
        records = build(seed)
        forward(records)
        wanted = topk.clone(), out.clone()
        topk.fill_(-7)
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(topk, wanted[0]) and torch.equal(out, wanted[1])
        assert previous is None or not torch.equal(previous, out)
        previous = wanted[1]
