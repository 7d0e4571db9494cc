"""Plans batches of the installed engine's runners, in a process of its own; prints one JSON object."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.decode import DecodeRule, expand_decodes
from mla_contract.adapters.fault import InvalidBatch
from mla_contract.adapters.plan import BatchPlan, PlanConfig, plan_batch
from mla_contract.adapters.split import SplitRule, split_batch
from mla_contract.backends.cuda_sparse.builder import CudaSparseBuilder
from mla_contract.backends.rocm_sparse.builder import RocmSparseBuilder
from mla_contract.backends.sparse.config import SparseConfig
from tests.adapters.engine_decodes import EngineDecodes, decode_differences
from tests.adapters.runner_batches import RunnerBatch, draw_batch, interleaved
from tests.backends.sparse.steps import SMALL

RELEASE = "0.32"
THRESHOLDS = (1, 2, 4)
BUILDER = replace(SMALL, max_num_seqs=64, max_num_batched_tokens=1024, max_model_len=4096, max_capture_size=128)


class Comparison:
    """Plans batches beside the engine's functions and counts what was seen.

    Attributes:
        split: The engine's division.
        planted: By how much our thresholds and decode lengths are wrong.
        seen: What the batches had, by name.
        faults: What was refused or differs.
    """

    def __init__(self, planted: int = 0) -> None:
        from vllm.v1.attention.backends.utils import split_decodes_and_prefills

        self.split, self.planted = split_decodes_and_prefills, planted
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []
        self.decodes = {next_n: EngineDecodes(next_n) for next_n in THRESHOLDS}
        configs = {next_n: _config(next_n) for next_n in THRESHOLDS}
        self.builders = {
            next_n: [CudaSparseBuilder(config), RocmSparseBuilder(config)] for next_n, config in configs.items()
        }

    def run(self, of: RunnerBatch, threshold: int, name: str) -> None:
        """Plan one batch in every way, and keep what is refused or differs."""
        common = of.common()
        self.seen["batches"] += 1
        self.seen["padded"] += of.num_tokens > int(of.start_loc[-1])
        self.seen["flags missing"] += len(of.flags) < len(of.seq_lens)
        try:
            shape = BatchShape.from_start_loc(
                of.start_loc, of.seq_lens, num_actual_tokens=of.num_tokens, is_prefilling=of.flags
            )
            for uniform in (False, True):
                for shorts in (True, False):
                    self._compare_split(shape, of, SplitRule(threshold, uniform, shorts, RELEASE), name)
                self._compare_rows(plan_batch(shape, _plan(threshold, uniform)), common, threshold, name)
            for builder in self.builders[threshold]:
                record, indexer = builder.build_pair(common)
                self._compare_record(record, indexer, common, threshold, name)
        except InvalidBatch as error:
            self.faults.append(f"{name}: refused: {error}")

    def _compare_split(self, shape: BatchShape, of: RunnerBatch, rule: SplitRule, name: str) -> None:
        """Compare the division; flags of live rows alone are completed for the engine, which cannot take them."""
        import torch

        common = of.common()
        flags = np.zeros(len(of.seq_lens), dtype=np.bool_)
        flags[: len(of.flags)] = of.flags
        common.is_prefilling = torch.from_numpy(flags)
        theirs = self.split(common, rule.threshold, rule.require_uniform, rule.treat_short_extends_as_decodes)
        ours = split_batch(shape, replace(rule, threshold=rule.threshold + self.planted))
        self.seen["both kinds"] += ours.num_decodes > 0 and ours.num_prefills > 0
        if tuple(ours) != tuple(theirs):
            self.faults.append(f"{name}: split {theirs}, ours {tuple(ours)}")

    def _compare_rows(self, plan: BatchPlan, common: Any, threshold: int, name: str) -> None:
        """Compare the decode rows: requests in a uniform split, else tokens; two ranks share the lengths over all."""
        if plan.decode is None:
            return
        count, native = plan.split.num_decodes, not plan.decode.flattened
        shape, rule = plan.shape, DecodeRule(not native, threshold, 1, ContextParallel(2))
        over_ranks = expand_decodes(shape, plan.tokens, plan.split, rule)
        assert over_ranks is not None
        lens = plan.decode.seq_lens + self.planted
        ours = plan.decode._replace(seq_lens=lens, global_seq_lens=over_ranks.global_seq_lens)
        offsets, lens = common.query_start_loc_cpu[: count + 1], common.seq_lens[:count]
        engine = self.decodes[threshold]
        theirs = engine.rows(offsets, lens, plan.split.num_decode_tokens, native=native)
        self.seen["rows of requests" if native else "rows of tokens"] += 1
        for field in decode_differences(ours, theirs):
            self.faults.append(f"{name}: decode {field}, native={native}")

    def _compare_record(self, record: Any, indexer: Any, common: Any, threshold: int, name: str) -> None:
        """Compare what the builders made of the batch."""
        decodes, prefills, tokens, rest = self.split(common, threshold)
        got = (record.num_decodes, record.num_prefills, record.num_decode_tokens)
        if got != (decodes, prefills, tokens) or indexer.num_prefill_tokens != rest:
            self.faults.append(f"{name}: record {got} of {decodes, prefills, tokens, rest}")
        live = int(common.query_start_loc_cpu[-1])
        owners = np.zeros(common.num_actual_tokens, dtype=np.int32)
        lens = np.diff(common.query_start_loc_cpu.numpy())
        owners[:live] = np.repeat(np.arange(common.num_reqs), lens)
        if record.req_id_per_token.tolist() != owners.tolist():
            self.faults.append(f"{name}: owners of tokens")


def _config(next_n: int) -> SparseConfig:
    return replace(BUILDER, next_n=next_n, release=RELEASE)


def _plan(threshold: int, uniform: bool) -> PlanConfig:
    return PlanConfig(
        block_size=16,
        decode_threshold=threshold,
        require_uniform=uniform,
        workspace_rows=1024,
        indexer_states=8192,
        topk_tokens=64,
        flatten_decodes=not uniform,
        release=RELEASE,
    )


def main(count: int, seed: int, planted: int) -> None:
    """Plan ``count`` batches of both runners and, as a control, a tenth as many that no runner makes."""
    rng = np.random.default_rng(seed)
    comparison = Comparison(planted)
    for index in range(count):
        threshold, newer = int(rng.choice(THRESHOLDS)), bool(index % 2)
        name = f"batch {index} of the {'newer' if newer else 'older'} runner"
        comparison.run(draw_batch(rng, threshold, newer=newer), threshold, name)
    runners = dict(comparison.seen)
    for index in range(count // 10):
        threshold = int(rng.choice(THRESHOLDS))
        comparison.run(interleaved(rng, threshold), threshold, f"interleaved batch {index}")
    json.dump({**runners, "all": comparison.seen["batches"], "faults": comparison.faults[:100]}, sys.stdout)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 0)
