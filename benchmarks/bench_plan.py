"""Time ``plan_batch`` beside vLLM's own planning functions, after checking that they plan alike.

Run from the root: ``python -m benchmarks.bench_plan``. Both sides run in one process, in turn, on one thread.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import vllm

from benchmarks.vllm_plans import VllmPlans
from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_packed import PackedContextPlan
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.plan import BatchPlan, PlanConfig, plan_batch

SIZES = (8, 64, 256, 1024, 4096)
CASES = {
    "one rank": ContextParallel(),
    "8 ranks": ContextParallel(8, 3, 16),
}


class Times(NamedTuple):
    """Median and quartiles of one side, in microseconds."""

    low_us: float
    median_us: float
    high_us: float


def mixed_batch(num_reqs: int) -> BatchShape:
    """Return decodes, long extends and fresh prefills as 3 : 3/4 : 1/4, with contexts of up to 4096 tokens."""
    rng = np.random.default_rng(num_reqs)
    num_decodes, num_fresh = num_reqs * 3 // 4, max(1, num_reqs // 16)
    query_lens = np.concatenate([rng.integers(1, 3, num_decodes), rng.integers(3, 64, num_reqs - num_decodes)])
    context_lens = rng.integers(1, 4096, num_reqs)
    context_lens[num_reqs - num_fresh :] = 0
    return BatchShape.of(query_lens, query_lens + context_lens)


def config_for(sharing: ContextParallel) -> PlanConfig:
    """Return the configuration of both sides."""
    return PlanConfig(
        block_size=64,
        decode_threshold=2,
        workspace_rows=65536,
        indexer_states=163840 * 40,
        flatten_decodes=True,
        parallel=sharing,
    )


def expanded(plan: BatchPlan) -> list[Any]:
    """Return the owners of all gathered context rows, which vLLM's builder makes on the host and ours on demand."""
    chunks = plan.context.chunks if isinstance(plan.context, PackedContextPlan) else ()
    return [(chunk.token_to_seq(), chunk.padded_local_token_to_seq()) for chunk in chunks]


def check(plan: BatchPlan, theirs: VllmPlans) -> None:
    """Raise if the two sides do not plan alike."""
    counts, decode, context, chunks = theirs.all()
    owners, positions = theirs.ragged()
    split = plan.split
    same = [counts == (split.num_decodes, split.num_prefills, split.num_decode_tokens, split.num_prefill_tokens)]
    assert plan.decode is not None
    assert plan.indexer is not None
    assert isinstance(plan.context, PackedContextPlan)
    same += [not theirs.order(), np.array_equal(owners, plan.tokens.requests)]
    same.append(np.array_equal(positions, plan.tokens.positions))
    same.append(np.array_equal(decode[1].numpy(), plan.decode.seq_lens))
    same.append(len(context.chunks) == len(plan.context.chunks))
    for wanted, got in zip(context.chunks, plan.context.chunks, strict=True):
        same.append(np.array_equal(wanted.cu_seq_lens, got.cu_seq_lens))
        same.append(np.array_equal(wanted.token_to_seq, got.token_to_seq()))
    same.append(
        [(c.token_start, c.token_end) for c in chunks] == [(c.token_start, c.token_end) for c in plan.indexer.chunks]
    )
    if not all(same):
        raise SystemExit(f"the plans differ: {same}")


def measure(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, Times]:
    """Time the sides in turn, round after round; each first runs once untimed, and nothing is collected."""
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
    return {name: Times(*statistics.quantiles(values, n=4)) for name, values in samples.items()}


def main() -> None:
    """Print one row for each batch and side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"vllm {vllm.__version__}  torch {torch.__version__}  numpy {np.__version__}")
    print(f"python {platform.python_version()} on {platform.machine()}, one thread, {rounds} rounds in turn")
    print(f"{'case':<10}{'requests':>9}  {'side':<22}{'median us':>10}{'quartiles':>20}{'us/request':>12}{'ratio':>8}")
    for name, sharing in CASES.items():
        config = config_for(sharing)
        for num_reqs in SIZES:
            row(name, mixed_batch(num_reqs), config, rounds)


def row(case: str, shape: BatchShape, config: PlanConfig, rounds: int) -> None:
    """Check and time one batch."""
    theirs = VllmPlans(shape, config, flatten=True)
    check(plan_batch(shape, config), theirs)
    lens = (shape.query_lens.copy(), shape.seq_lens.copy())
    sides: dict[str, Callable[[], object]] = {
        "vllm": theirs.all,
        "plan_batch": lambda: plan_batch(BatchShape.of(*lens), config),
        "plan_batch, expanded": lambda: expanded(plan_batch(BatchShape.of(*lens), config)),
    }
    for run in sides.values():
        run()
    times = measure(sides, rounds)
    base = times["vllm"].median_us
    for side, (low, median, high) in times.items():
        spread = f"{low:.0f} to {high:.0f}"
        each = median / shape.num_reqs
        print(f"{case:<10}{shape.num_reqs:>9}  {side:<22}{median:>10.0f}{spread:>20}{each:>12.2f}{base / median:>8.1f}")


if __name__ == "__main__":
    main()
