"""Time our sparse builders beside vLLM's, after checking that they agree.

Run from the root: ``python -m benchmarks.bench_builder``. All run on CPU tensors in one process and on one thread.
Sides take turns; each turn builds the same few steps, whose lengths differ, and its CPU time is divided by them.

| side | what it builds |
|---|---|
| vllm shared, no kernel | the shared builder; its one kernel, which finds each token's owner, does nothing |
| vllm shared | the same with that kernel's work done in PyTorch |
| vllm shared + indexer | and the indexer's record: what ``build_pair`` makes, less the owners of gathered keys |
| vllm rocm + indexer | the ROCm builder in place of the shared one: also aiter's rows, as ours |
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
import vllm
from vllm.v1.attention.backend import CommonAttentionMetadata

from benchmarks import vllm_builders, vllm_kernels
from mla_contract.backends.cuda_sparse.builder import CudaSparseBuilder
from mla_contract.backends.rocm_sparse.builder import RocmSparseBuilder
from mla_contract.backends.sparse.config import SparseConfig

SIZES = (64, 256)
STEPS = 8
ROWS = 65536
CONFIG = SparseConfig(
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    max_model_len=8192,
    max_capture_size=512,
    topk_tokens=2048,
    indexer_rows=ROWS * 10,
    dense_prefill=True,
    context_rows=ROWS,
    context_tokens=1 << 20,
)
Steps = Sequence[CommonAttentionMetadata]
Run = Callable[[Any], object]


def batch(num_reqs: int, seed: int, *, mixed: bool) -> CommonAttentionMetadata:
    """Return decodes, or decodes with an eighth of prefills, one in four of them without context."""
    rng = np.random.default_rng(seed)
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


def differences(ours: Any, theirs: Any, names: Sequence[str]) -> list[str]:
    """Return the names under which two records differ; element types may."""
    wrong = []
    for name in names:
        mine, other = getattr(ours, name), getattr(theirs, name)
        tensors = isinstance(mine, torch.Tensor)
        same = mine.reshape(-1).tolist() == other.reshape(-1).tolist() if tensors else mine == other
        wrong += [] if same else [name]
    return wrong


COUNTS = ("num_decodes", "num_prefills", "num_decode_tokens")
SHARED = (*COUNTS, "num_reqs", "req_id_per_token", "prefill_max_seq_len", "decode_max_query_len", "block_size")
AITER = ("qo_indptr", "paged_kv_indptr", "paged_kv_last_page_len", "req_id_per_token")
PREFILL = ("query_start_loc", "max_query_len", "query_lens_cpu", "use_dense_mha")
CONTEXT = ("cu_seq_lens", "starts", "token_to_seq", "query_start_loc", "max_seq_len", "num_context_tokens", "seq_lens")
CHUNK = ("cu_seqlen_ks", "cu_seqlen_ke", "cu_seq_lens", "total_seq_lens", "token_start", "token_end", "skip_kv_gather")


def check(ours: Any, indexer: Any, theirs: Any, rocm: Any, their_indexer: Any) -> None:
    """Stop if records differ in anything that both have."""
    wrong = differences(ours, theirs, SHARED) + differences(ours, rocm, AITER)
    wrong += differences(indexer, their_indexer, (*COUNTS, "num_prefill_tokens"))
    wrong += differences(indexer.decode, their_indexer.decode, ("seq_lens", "decode_lens", "requires_padding"))
    if (ours.prefill is None) != (theirs.prefill is None):
        raise SystemExit("one record has a prefill part, the other has none")
    if ours.prefill is not None:
        wrong += differences(ours.prefill, theirs.prefill, PREFILL)
        pairs = zip(ours.prefill.chunked_context.chunks, theirs.prefill.chunked_context.chunks, strict=True)
        wrong += [name for mine, other in pairs for name in differences(mine, other, CONTEXT)]
        pairs = zip(indexer.prefill.chunks, their_indexer.prefill.chunks, strict=True)
        wrong += [name for mine, other in pairs for name in differences(mine, other, CHUNK)]
    if wrong:
        raise SystemExit(f"records differ: {wrong}")


def measure(sides: dict[str, Run], steps: Steps, rounds: int) -> dict[str, list[float]]:
    """Return quartiles of each side's CPU time for one step, in microseconds; nothing is collected meanwhile."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name, run in sides.items():
            run(steps[0])
            begin = time.thread_time_ns()
            for of in steps:
                run(of)
            samples[name].append((time.thread_time_ns() - begin) / 1e3 / len(steps))
    gc.enable()
    return {name: statistics.quantiles(values, n=4) for name, values in samples.items()}


def main() -> None:
    """Print one row for each batch and side, with its ratio to each of vLLM's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"vllm {vllm.__version__}  torch {torch.__version__}  numpy {np.__version__}")
    print(f"python {platform.python_version()} on {platform.machine()}, one thread, {rounds} rounds of {STEPS} steps")
    shared, rows = vllm_builders.shared_builder(CONFIG), vllm_builders.rocm_builder(CONFIG)
    indexer = vllm_builders.indexer_builder(CONFIG, -(-CONFIG.max_model_len // 64))
    idle = vllm_builders.shared_builder(CONFIG)
    vllm_kernels.install()
    idle._build_req_id_per_token = lambda of: idle.req_id_per_token_buffer[: of.num_actual_tokens]
    rocm, cuda = RocmSparseBuilder(CONFIG), CudaSparseBuilder(CONFIG)
    run = vllm_builders.run
    sides: dict[str, Run] = {
        "vllm shared, no kernel": lambda of: run(idle, of),
        "vllm shared": lambda of: run(shared, of),
        "vllm shared + indexer": lambda of: (run(shared, of), indexer.build(0, of)),
        "vllm rocm + indexer": lambda of: (run(rows, of), indexer.build(0, of)),
        "rocm_sparse build": rocm.build,
        "rocm_sparse build_pair": rocm.build_pair,
        "cuda_sparse build": cuda.build,
        "cuda_sparse build_pair": cuda.build_pair,
    }
    heads = ("no kernel", "shared", "+ indexer", "rocm")
    print(
        f"{'case':<7}{'reqs':>5}  {'side':<23}{'median us':>10}{'quartiles':>16}" + "".join(f"{h:>11}" for h in heads)
    )
    for case in ("decode", "mixed"):
        for num_reqs in SIZES:
            steps = [batch(num_reqs, seed, mixed=case == "mixed") for seed in range(STEPS)]
            for of in steps:
                mine = rocm.build_pair(cast(Any, of))
                check(*mine, run(shared, of), run(rows, of), indexer.build(0, of))
            times = measure(sides, steps, rounds)
            bases = [times[name][1] for name in list(sides)[:4]]
            for side, (low, median, high) in times.items():
                ratios = "".join(f"{median / base:>11.2f}" for base in bases)
                print(f"{case:<7}{num_reqs:>5}  {side:<23}{median:>10.1f}{f'{low:.0f} to {high:.0f}':>16}{ratios}")


if __name__ == "__main__":
    main()
