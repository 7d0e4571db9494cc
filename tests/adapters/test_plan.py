"""The one call, and what it must not do."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_fields import FieldContextPlan
from mla_contract.adapters.context_packed import PackedContextPlan
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.plan import BatchPlan, PlanConfig, plan_batch
from tests.adapters.scenarios import BATCHES
from tests.adapters.strategies import ordered_batches

CONFIG = PlanConfig(
    block_size=16, decode_threshold=2, workspace_rows=1024, indexer_states=4096, topk_tokens=128, flatten_decodes=True
)


def _arrays(part: Any) -> list[np.ndarray[Any, Any]]:
    """Return every array that a plan holds, at any depth."""
    if isinstance(part, np.ndarray):
        return [part]
    if isinstance(part, tuple):
        return [array for member in part for array in _arrays(member)]
    if is_dataclass(part):
        return [array for field in fields(part) for array in _arrays(getattr(part, field.name))]
    return []


@given(ordered_batches())
def test_plan_of_a_legal_batch_is_complete_and_read_only(shape: BatchShape) -> None:
    """Parts are present exactly where the batch has them, and no array can be written."""
    plan = plan_batch(shape, CONFIG)
    assert (plan.decode is None) == (plan.split.num_decodes == 0)
    assert (plan.indexer is None) == (plan.split.num_prefills == 0)
    prefills = shape.context_lens[plan.split.num_decodes :]
    assert (plan.context is None) == (not prefills.any())
    assert all(not array.flags.writeable for array in _arrays(plan))
    assert {array.dtype for array in _arrays(plan)} <= {np.dtype(np.int32), np.dtype(np.int64)}


@pytest.mark.parametrize("name", BATCHES)
def test_plan_of_a_scenario_counts_every_token(name: str) -> None:
    """Each batch of vLLM's own tests can be planned; its parts sum to the whole."""
    query_lens, seq_lens = BATCHES[name]
    shape = BatchShape.of(query_lens, seq_lens)
    plan = plan_batch(shape, PlanConfig(block_size=16, workspace_rows=4096, flatten_decodes=True))
    assert plan.split.num_decode_tokens + plan.split.num_prefill_tokens == sum(query_lens)
    assert len(plan.tokens.requests) == sum(query_lens)


def test_plan_of_a_batch_cannot_be_changed() -> None:
    """A plan is frozen, down to its arrays, and the caller's arrays are not kept."""
    lens = np.array([1, 5])
    plan = plan_batch(BatchShape.of(lens, [9, 9]), CONFIG)
    lens[:] = 7
    assert plan.shape.query_lens.tolist() == [1, 5]
    with pytest.raises(AttributeError):
        plan.split = plan.split  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        plan.tokens.positions[0] = 1


def test_plan_of_any_order_divides_at_the_first_prefill() -> None:
    """A row that could decode prefills behind a prefill, as vLLM divides; in front of it, it decodes."""
    assert plan_batch(BatchShape.of([5, 1], [9, 9]), CONFIG).split == (0, 2, 0, 6)
    assert plan_batch(BatchShape.of([1, 5], [9, 9]), CONFIG).split == (1, 1, 1, 5)


def test_plan_of_a_fresh_prompt_before_a_chunk_has_the_context_of_the_chunk() -> None:
    """Prompts stand by their length: 20 tokens without context, then 30 with it; the order of classes is another."""
    plan = plan_batch(BatchShape.of([1, 20, 30], [9, 20, 130]), CONFIG)
    assert plan.split == (1, 2, 1, 50)
    assert isinstance(plan.context, PackedContextPlan)
    assert [chunk.seq_lens.tolist() for chunk in plan.context.chunks] == [[100]]
    assert plan.context.chunks[0].request_slice == slice(1, 2)


def test_plan_of_a_batch_padded_for_replay_counts_its_tokens_as_decodes() -> None:
    """Three live decodes in a graph of four: the last offset repeats, the token is nobody's, and nothing prefills."""
    shape = BatchShape.from_start_loc([0, 1, 2, 3, 3], [7, 8, 9, 0], num_actual_tokens=4)
    plan = plan_batch(shape, CONFIG)
    assert plan.split == (4, 0, 4, 0)
    assert plan.tokens.requests.tolist() == [0, 1, 2, 0]
    assert plan.decode is not None and plan.sparse_start_loc is not None
    assert plan.decode.seq_lens.tolist() == [7, 8, 9, 0]
    assert plan.sparse_start_loc.tolist() == [0, 7, 15, 24, 24]
    assert plan_batch(BatchShape.of([1, 1, 1], [7, 8, 9]), CONFIG).split == (3, 0, 3, 0)


def test_plan_of_a_mixed_batch_padded_for_replay_counts_its_tokens_as_prefills() -> None:
    """Seven live tokens in a graph of 16: the padding belongs to the prefills, but no chunk scores it."""
    shape = BatchShape.from_start_loc([0, 1, 2, 7, 7, 7], [7, 8, 9, 0, 0], num_actual_tokens=16)
    plan = plan_batch(shape, CONFIG)
    assert plan.split == (2, 3, 2, 14)
    assert plan.indexer is not None
    assert [(chunk.token_start, chunk.token_end, chunk.total_seq_lens) for chunk in plan.indexer.chunks] == [(2, 7, 9)]


@pytest.mark.parametrize(("release", "kind"), [("0.27", FieldContextPlan), ("0.28", PackedContextPlan)])
def test_plan_for_a_release_has_its_shape_of_context(release: str, kind: type) -> None:
    """The switch selects parallel arrays up to 0.27 and records since."""
    config = PlanConfig(block_size=16, workspace_rows=1024, release=release)
    assert isinstance(plan_batch(BatchShape.of([4], [20]), config).context, kind)


def test_plan_with_a_block_table_has_slots() -> None:
    """Slots are planned where a table is given."""
    table = np.array([[3], [5]])
    plan = plan_batch(BatchShape.of([1, 2], [4, 2], block_table=table), CONFIG)
    assert plan.slot_mapping is not None
    assert plan.slot_mapping.tolist() == [3 * 16 + 3, 5 * 16, 5 * 16 + 1]
    assert plan_batch(BatchShape.of([1, 2], [4, 2]), CONFIG).slot_mapping is None


def test_plan_of_an_empty_batch_has_no_part() -> None:
    """A step without requests is legal."""
    plan: BatchPlan = plan_batch(BatchShape.of([], []), CONFIG)
    assert (plan.decode, plan.context, plan.indexer) == (None, None, None)
    assert plan.tokens.num_live == 0


def test_plan_is_the_same_on_every_rank_but_for_local_lengths() -> None:
    """Chunks are the same on all ranks, or collectives would not match."""
    shape = BatchShape.of([1, 9, 9], [90, 900, 350])
    plans = [
        plan_batch(shape, PlanConfig(block_size=16, workspace_rows=256, parallel=ContextParallel(4, rank, 4)))
        for rank in range(4)
    ]
    contexts = [plan.context for plan in plans]
    cuts = [[tuple(chunk.seq_lens) for chunk in c.chunks] for c in contexts if isinstance(c, PackedContextPlan)]
    assert len(cuts) == 4
    assert all(cut == cuts[0] for cut in cuts)


def test_planning_imports_no_torch() -> None:
    """Planning, and declaring the buffers, needs NumPy alone."""
    code = (
        "import sys, mla_contract.adapters.plan as p, mla_contract.adapters.buffers, mla_contract.adapters.batch as b;"
        "p.plan_batch(b.BatchShape.of([1, 4], [9, 9]), p.PlanConfig(block_size=16, workspace_rows=64));"
        "sys.exit('torch' in sys.modules or 'vllm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
