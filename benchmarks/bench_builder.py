"""Time our sparse builders beside vLLM's, after checking that they agree.

Run from the root: ``python -m benchmarks.bench_builder``. All run on CPU tensors in one process, in turn, on one
thread. vLLM's builders are made without an engine: buffers and settings are set by hand, and the kernels that compute
owners and per-token lengths, which need a GPU, are replaced by nothing. vLLM's shared builder has neither per-token
rows nor the indexer's record; the ROCm builder has the rows, and the third side adds the indexer's rows and chunks.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import vllm
from vllm.model_executor.layers.attention import sparse_mla_attention as theirs
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.mla import rocm_aiter_mla_sparse as rocm_theirs

from benchmarks.vllm_plans import VllmPlans
from mla_contract.adapters.batch import BatchShape
from mla_contract.backends.cuda_sparse.builder import CudaSparseBuilder
from mla_contract.backends.rocm_sparse.builder import RocmSparseBuilder
from mla_contract.backends.rocm_sparse.config import SparseConfig

SIZES = (64, 256)
TOKENS = 8192
TOPK = 2048
ROWS = 65536


class _NoPrefillKernel:
    """Prefill backend that prepares nothing."""

    def prepare_metadata(self, prefill: object) -> None:
        """Do nothing."""


@dataclass
class _Settings:
    """The part of vLLM's configuration that the builder asks for."""

    hisparse_config: None = None
    sparse_mla_force_mqa: bool = False

    @property
    def attention_config(self) -> _Settings:
        """Return itself."""
        return self


@dataclass
class _Model:
    """The model's element type, and the cache's block size."""

    dtype: torch.dtype = torch.bfloat16
    block_size: int = 64


@dataclass
class _Dims:
    """Widths of a cached row."""

    kv_lora_rank: int = 512
    qk_rope_head_dim: int = 64


def vllm_indexer(of: CommonAttentionMetadata, config: SparseConfig) -> Callable[[], object]:
    """Return a call of what vLLM's indexer builder does for a batch: its split, decode rows and chunks."""
    shape = BatchShape.from_start_loc(of.query_start_loc_cpu.numpy(), of.seq_lens.numpy())
    plans = VllmPlans(shape, config.flat_plan, flatten=True)

    def build() -> object:
        num_decodes, num_prefills, num_tokens, _ = plans.split()
        return plans.decode(num_decodes, num_tokens), plans.chunks(num_decodes) if num_prefills else None

    return build


def rocm_vllm_builder() -> Any:
    """Return vLLM's ROCm sparse builder with its buffers, no engine behind it, and no persistent work."""
    builder = vllm_builder(rocm_theirs.ROCMAiterMLASparseMetadataBuilder, rocm_theirs.ROCMAiterMLASparseMetadata)
    builder.model_dtype = builder._mla_kv_dtype = torch.bfloat16
    builder.kv_cache_dtype, builder._use_persistent_metadata, builder.mla_dims = "auto", False, _Dims()
    builder.req_id_per_token_buffer = torch.zeros(TOKENS, dtype=torch.int32)
    builder.qo_indptr = torch.arange(TOKENS + 1, dtype=torch.int32)
    builder.paged_kv_last_page_len = torch.ones(TOKENS, dtype=torch.int32)
    builder.paged_kv_indices = torch.zeros(TOKENS * TOPK, dtype=torch.int32)
    builder.paged_kv_indptr = torch.zeros(TOKENS + 1, dtype=torch.int32)
    builder._prev_req_extent = builder._prev_indices_extent = 0
    lens = torch.zeros(TOKENS, dtype=torch.int32)
    rocm_theirs.generate_sparse_seqlen_triton = lambda *given: lens[: given[4]]
    return builder


def vllm_builder(
    cls: type = theirs.SparseMLACommonMetadataBuilder, record: type = theirs.SparseMLACommonMetadata
) -> Any:
    """Return vLLM's shared sparse builder, or one derived from it, with its buffers and no engine behind it."""
    builder: Any = object.__new__(cls)
    builder.metadata_cls = record
    builder.vllm_config, builder.model_config, builder.kv_cache_spec = _Settings(), _Model(), _Model()
    builder.device, builder.topk_tokens, builder.reorder_batch_threshold = torch.device("cpu"), TOPK, 1
    builder.use_pcp, builder.dcp_world_size, builder.dcp_manager = False, 1, None
    builder.dcp_local_block_size = builder.dcp_virtual_block_size = builder.cp_kv_cache_interleave_size = 1
    builder.chunked_prefill_workspace_size = ROWS
    builder.chunked_prefill_workspace = torch.empty(ROWS, 576, dtype=torch.bfloat16)
    builder._context_lens_cpu = torch.empty(1024, dtype=torch.int32)
    builder.topk_mask_workspace, builder._prefill_backend = None, _NoPrefillKernel()
    owners = torch.zeros(TOKENS, dtype=torch.int32)
    builder._build_req_id_per_token = lambda common: owners[: common.num_actual_tokens]
    return builder


def batch(num_reqs: int, *, mixed: bool) -> CommonAttentionMetadata:
    """Return decodes, or decodes with an eighth of prefills, one in four of them without context."""
    rng = np.random.default_rng(num_reqs)
    queries, context = np.ones(num_reqs, np.int32), rng.integers(500, 4000, num_reqs).astype(np.int32)
    if mixed:
        first = num_reqs - num_reqs // 8
        queries[first:] = rng.integers(16, 128, num_reqs - first)
        context[num_reqs - num_reqs // 32 :] = 0
    start_loc = torch.from_numpy(np.concatenate([[0], np.cumsum(queries)]).astype(np.int32))
    seq_lens = torch.from_numpy(queries + context)
    tokens, longest = int(queries.sum()), int(seq_lens.max())
    return CommonAttentionMetadata(
        query_start_loc=start_loc,
        query_start_loc_cpu=start_loc.clone(),
        seq_lens=seq_lens,
        num_reqs=num_reqs,
        num_actual_tokens=tokens,
        max_query_len=int(queries.max()),
        max_seq_len=longest,
        block_table_tensor=torch.zeros(num_reqs, -(-longest // 64), dtype=torch.int32),
        slot_mapping=torch.zeros(tokens, dtype=torch.int64),
        seq_lens_cpu_upper_bound=seq_lens.clone(),
    )


def check(ours: Any, other: Any) -> None:
    """Stop if two records differ in a number that both have."""
    names = ("num_decodes", "num_prefills", "num_decode_tokens", "prefill_max_seq_len", "decode_max_query_len")
    wrong = [name for name in names if getattr(ours, name) != getattr(other, name)]
    mine, yours = ours.prefill, other.prefill
    if (mine is None) != (yours is None):
        raise SystemExit(f"records differ: {wrong}, prefill")
    if mine is not None:
        a, b = mine.chunked_context.chunks, yours.chunked_context.chunks
        wrong += [] if mine.use_dense_mha == yours.use_dense_mha and len(a) == len(b) else ["prefill"]
        wrong += ["cu_seq_lens" for x, y in zip(a, b, strict=True) if not torch.equal(x.cu_seq_lens, y.cu_seq_lens)]
    if wrong:
        raise SystemExit(f"records differ: {wrong}")


def measure(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return quartiles of each side in microseconds; sides take turns, and nothing is collected meanwhile."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name, run in sides.items():
            run()
            begin = time.perf_counter()
            run()
            samples[name].append((time.perf_counter() - begin) * 1e6)
    gc.enable()
    return {name: statistics.quantiles(values, n=4) for name, values in samples.items()}


def main() -> None:
    """Print one row for each batch and side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"vllm {vllm.__version__}  torch {torch.__version__}  numpy {np.__version__}")
    print(f"python {platform.python_version()} on {platform.machine()}, one thread, {rounds} rounds in turn")
    config = SparseConfig(
        max_num_seqs=256,
        max_num_batched_tokens=TOKENS,
        max_model_len=8192,
        max_capture_size=512,
        topk_tokens=TOPK,
        indexer_rows=ROWS * 10,
        dense_prefill=True,
        context_rows=ROWS,
        context_tokens=1 << 20,
    )
    rocm, cuda = RocmSparseBuilder(config), CudaSparseBuilder(config)
    other, rows = vllm_builder(), rocm_vllm_builder()
    print(f"{'case':<8}{'requests':>9}  {'side':<22}{'median us':>10}{'quartiles':>20}{'ratio':>8}")
    for case in ("decode", "mixed"):
        for num_reqs in SIZES:
            of = batch(num_reqs, mixed=case == "mixed")
            ours = cast(Any, of)
            check(rocm.build(ours), other.build(0, of))
            add = vllm_indexer(of, config)
            sides: dict[str, Callable[[], object]] = {
                "vllm, shared builder": lambda of=of: other.build(0, of),  # type: ignore[misc]
                "vllm, rocm builder": lambda of=of: rows.build(0, of),  # type: ignore[misc]
                "vllm, rocm, indexer": lambda of=of, add=add: (rows.build(0, of), add()),  # type: ignore[misc]
                "rocm_sparse": lambda of=ours: rocm.build(of),  # type: ignore[misc]
                "rocm_sparse, indexer": lambda of=ours: rocm.build_pair(of),  # type: ignore[misc]
                "cuda_sparse": lambda of=ours: cuda.build(of),  # type: ignore[misc]
            }
            times = measure(sides, rounds)
            base = times["vllm, shared builder"][1]
            for side, (low, median, high) in times.items():
                spread = f"{low:.0f} to {high:.0f}"
                print(f"{case:<8}{num_reqs:>9}  {side:<22}{median:>10.0f}{spread:>20}{median / base:>8.2f}")


if __name__ == "__main__":
    main()
