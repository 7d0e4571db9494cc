"""Every batch that vLLM's runners are recorded to make is planned and built: no refusal, and no clause broken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.fault import InvalidBatch
from mla_contract.adapters.plan import PlanConfig, plan_batch
from mla_contract.contract.clauses.clause import Level
from mla_contract.runtime.check import Known, check_metadata
from mla_contract.testing.records import PlainBatch
from mla_contract.testing.runner_batches import RunnerBatch, runner_batches
from mla_contract.testing.runner_common import common_batch_of
from mla_contract.testing.sparse_targets import CUDA_SPARSE, ROCM_SPARSE, BackendTarget

BLOCK = 16
SPARSE = {"rocm": ROCM_SPARSE, "cuda": CUDA_SPARSE}
TARGETS = {f"{name} {variant}": make for name, of in SPARSE.items() for variant, make in of.items()}
ALONE = ContextParallel()


def plan_configs(batch: RunnerBatch) -> Iterator[PlanConfig]:
    """Yield what builders of the batch's engine may ask of the planner."""
    aligned = BLOCK * batch.parallel.size * batch.parallel.interleave
    for uniform, shorts, flatten in product((False, True), repeat=3):
        yield PlanConfig(
            block_size=BLOCK,
            decode_threshold=batch.ordered_by,
            require_uniform=uniform,
            treat_short_extends_as_decodes=shorts,
            workspace_rows=aligned * 16,
            indexer_states=aligned * 64,
            topk_tokens=64,
            flatten_decodes=flatten,
            parallel=batch.parallel,
        )


def test_every_recorded_batch_is_planned() -> None:
    """With the sharing of its engine, each split and either layout of rows; tokens are those of the batch."""
    plans = 0
    for batch in runner_batches().values():
        table = common_batch_of(batch, BLOCK).block_table_tensor.numpy()
        shape = BatchShape.of(
            batch.query_lens,
            batch.seq_lens_cpu_upper_bound,
            num_actual_tokens=batch.num_actual_tokens,
            max_query_len=batch.max_query_len,
            is_prefilling=batch.is_prefilling,
            block_table=table,
        )
        for config in plan_configs(batch):
            split = plan_batch(shape, config).split
            assert split.num_decodes + split.num_prefills == len(batch.query_lens)
            assert split.num_decode_tokens + split.num_prefill_tokens == batch.num_actual_tokens
            plans += 1
    assert plans > 2000


def test_batch_that_no_runner_makes_is_refused() -> None:
    """The planner does not take everything: a row without a sequence for its tokens is an error."""
    batch = next(iter(runner_batches().values()))
    with pytest.raises(InvalidBatch):
        BatchShape.of(batch.query_lens, [0] * len(batch.query_lens))


def handed_over(batch: RunnerBatch, target: BackendTarget) -> PlainBatch:
    """Return the batch as a builder gets it; these backends read whole requests, so no ranks share the cache."""
    return common_batch_of(replace(batch, parallel=ALONE, dcp_local_seq_lens=None), target.config.block_size)


@pytest.mark.parametrize("name", TARGETS)
def test_builders_take_every_recorded_batch(name: str) -> None:
    """One builder takes them one after another: every request and token is counted, and tokens have their owners."""
    target: BackendTarget = TARGETS[name]()
    for batch in runner_batches().values():
        made = target.build(handed_over(batch, target))
        attention, indexer = made["attention"], made["indexer"]
        assert attention.num_decodes + attention.num_prefills == len(batch.query_lens)
        assert indexer.num_decode_tokens + indexer.num_prefill_tokens == batch.num_actual_tokens
        owners = np.repeat(np.arange(len(batch.query_lens)), batch.query_lens)
        rows = min(len(attention.req_id_per_token), len(owners))
        assert attention.req_id_per_token[:rows].tolist() == owners[:rows].tolist()


@pytest.mark.parametrize("name", TARGETS)
def test_records_of_recorded_batches_break_no_clause(name: str) -> None:
    """Neither level reports anything of either record, also where the device knows of drafts that were rejected.

    A builder whose decodes have one token is of an engine without drafts; so is a batch that was ordered for it.
    """
    target: BackendTarget = TARGETS[name]()
    differ, drafts = 0, target.config.next_n > 1
    for batch in runner_batches().values():
        differs = batch.seq_lens != batch.seq_lens_cpu_upper_bound
        if (not drafts and batch.drafts != "none") or (differs and batch.ordered_by == 1):
            continue
        differ += differs
        of = handed_over(batch, target)
        known = Known(facts=replace(target.facts, capturing=batch.padding == "capture"), declaration=target.declaration)
        for record in target.build(of).values():
            found = check_metadata(record, batch=of, level=Level.VALUES, **known)
            assert found == (), (batch, [one.one_line() for one in found])
    assert (differ > 10) is drafts


@pytest.mark.parametrize("name", TARGETS)
def test_wrong_count_on_recorded_batches_is_told(name: str) -> None:
    """The silence is no deafness: one decode token more is reported on every recorded step."""
    target: BackendTarget = TARGETS[name]()
    for batch in list(runner_batches().values())[::20]:
        of = handed_over(batch, target)
        record = target.build(of)["attention"]
        wrong = replace(record, num_decode_tokens=record.num_decode_tokens + 1)
        assert check_metadata(wrong, batch=of, facts=target.facts, declaration=target.declaration), batch
