"""Persistent buffers: stable addresses, one copy, padding at every step, nothing left of the step before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.buffer_fields import FIELDS, BufferField
from mla_contract.adapters.buffers import PlanBuffers, expand_owners
from mla_contract.adapters.capacity import Capacity, RowUnit
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.fault import InvalidBatch, InvalidConfig
from mla_contract.adapters.plan import BatchPlan, PlanConfig, plan_batch
from tests.adapters.offsets import start_loc_of
from tests.adapters.strategies import ordered_batches

CONFIG = PlanConfig(
    block_size=16,
    decode_threshold=2,
    workspace_rows=64,
    indexer_states=4096,
    topk_tokens=8,
    flatten_decodes=True,
    parallel=ContextParallel(2, 1, 4),
)
CAPACITY = Capacity(
    max_num_seqs=16,
    max_num_batched_tokens=256,
    max_capture_size=24,
    next_n=2,
    max_context_tokens=2048,
    workspace_rows=64,
    span=8,
)
LONG = BatchShape.of([2, 2, 9, 9, 30], [50, 60, 200, 409, 30], block_table=np.arange(500).reshape(5, 100))
SHORT = BatchShape.of([1], [7], block_table=np.array([[3]]))


def _padding(field: BufferField, live: torch.Tensor) -> int:
    """Return what rows behind the live ones must hold."""
    if field.padding is not None:
        return field.padding
    return int(live[-1]) if len(live) else 0


def _validate_rows(buffers: PlanBuffers, plan: BatchPlan) -> None:
    """Lower a plan and compare every row of every buffer, live and padding."""
    lowered = buffers.lower(plan)
    for field in FIELDS:
        live, whole = lowered[field.name], buffers.buffer(field.name)
        assert (whole[len(live) :] == _padding(field, live)).all(), field.name
        assert str(whole.dtype) == f"torch.{field.dtype}"
    assert lowered["query_start_loc"].tolist() == plan.shape.query_start_loc.tolist()
    assert lowered["positions"].tolist() == plan.tokens.positions.tolist()
    if plan.decode is not None:
        assert lowered["decode_seq_lens"].tolist() == plan.decode.seq_lens.reshape(-1).tolist()


def test_buffers_after_long_short_long_hold_nothing_stale() -> None:
    """Rows behind the live ones are padding at every step, and addresses never change (M7, M8)."""
    buffers = PlanBuffers(CAPACITY, "cpu")
    addresses = {field.name: buffers.buffer(field.name).data_ptr() for field in FIELDS}
    for shape in (LONG, SHORT, LONG, BatchShape.of([], []), SHORT):
        _validate_rows(buffers, plan_batch(shape, CONFIG))
        assert {field.name: buffers.buffer(field.name).data_ptr() for field in FIELDS} == addresses


@given(st.lists(ordered_batches(), min_size=1, max_size=3))
def test_buffers_over_any_steps_equal_fresh_ones(steps: list[BatchShape]) -> None:
    """After any steps, the last one's rows equal those of buffers that never held another (no leak between steps)."""
    used, fresh = PlanBuffers(CAPACITY, "cpu"), PlanBuffers(CAPACITY, "cpu")
    for shape in steps:
        used.lower(plan_batch(shape, CONFIG))
    fresh.lower(plan_batch(steps[-1], CONFIG))
    for field in FIELDS:
        assert torch.equal(used.buffer(field.name), fresh.buffer(field.name)), field.name


def test_buffers_of_some_fields_have_those_alone() -> None:
    """A backend names what its records hold; other fields take no memory, and an unknown name is refused."""
    whole, some = PlanBuffers(CAPACITY, "cpu"), PlanBuffers(CAPACITY, "cpu", ("positions", "seq_lens"))
    assert some.num_bytes < whole.num_bytes
    lowered = some.lower(plan_batch(SHORT, CONFIG))
    assert (lowered["positions"].tolist(), lowered["seq_lens"].tolist()) == ([6], [7])
    with pytest.raises(KeyError):
        lowered["slot_mapping"]
    with pytest.raises(InvalidConfig, match="PlanBuffers.fields"):
        PlanBuffers(CAPACITY, "cpu", ("positions", "seq_lans"))


def test_buffers_refused_batch_leaves_nothing_behind() -> None:
    """What was staged of a batch that is then refused goes over with the next one: no row is stale."""
    used, fresh = PlanBuffers(CAPACITY, "cpu"), PlanBuffers(CAPACITY, "cpu")
    short = plan_batch(SHORT, CONFIG)
    used.lower(short)
    with pytest.raises(InvalidBatch, match="buffer decode_seq_lens"):
        used.lower_arrays({"sparse_start_loc": np.arange(9), "decode_seq_lens": np.ones(1000, np.int32)})
    used.lower(short)
    fresh.lower(short)
    for field in FIELDS:
        assert torch.equal(used.buffer(field.name), fresh.buffer(field.name)), field.name


class _Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts copies, and refuses whatever reads a value back."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Count, then call."""
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "item", "nonzero"), name
        self.count += name == "copy_"
        return func(*args, **(kwargs or {}))


def test_buffers_lower_with_one_copy_and_no_read() -> None:
    """Everything goes over in one copy, and nothing comes back."""
    buffers, plan = PlanBuffers(CAPACITY, "cpu"), plan_batch(LONG, CONFIG)
    with _Copies() as copies:  # type: ignore[no-untyped-call]
        buffers.lower(plan)
    assert copies.count == 1


def test_buffers_are_views_of_one_allocation_on_aligned_starts() -> None:
    """Fields do not overlap, each begins on the alignment, and their sizes are those of the formula."""
    buffers = PlanBuffers(CAPACITY, "cpu")
    spans = []
    for field in FIELDS:
        tensor = buffers.buffer(field.name)
        assert len(tensor) == CAPACITY.rows(field.unit) + field.more_rows
        spans.append((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes))
    base = spans[0][0]
    assert all((begin - base) % 256 == 0 for begin, _ in spans)
    assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:], strict=False))
    assert spans[-1][1] - base <= buffers.num_bytes


def test_buffers_too_small_for_a_batch_are_refused_by_name() -> None:
    """A batch beyond the capacity names the field, its rows and their formula, or the requests; one within is fine."""
    small = Capacity(max_num_seqs=5, max_num_batched_tokens=8, workspace_rows=64, max_context_tokens=64)
    buffers = PlanBuffers(small, "cpu")
    with pytest.raises(InvalidBatch, match="buffer req_id_per_token") as caught:
        buffers.lower(plan_batch(LONG, CONFIG))
    assert caught.value.facts == {"expected": "at most 8 rows, tokens", "got": 52}
    with pytest.raises(InvalidBatch, match="at most 5 requests"):
        buffers.lower(plan_batch(BatchShape.of([1] * 6, [9] * 6), CONFIG))
    assert buffers.lower(plan_batch(SHORT, CONFIG))["seq_lens"].tolist() == [7]


def test_capacity_covers_captured_graphs_beyond_max_num_seqs() -> None:
    """Buffers hold the largest captured batch, even where it is larger than max_num_seqs (#41016)."""
    capacity = Capacity(max_num_seqs=16, max_num_batched_tokens=16, max_capture_size=32, next_n=2)
    assert capacity.rows(RowUnit.REQUESTS) == 32
    assert capacity.rows(RowUnit.DECODE_CELLS) == 64
    with pytest.raises(InvalidConfig):
        Capacity(max_num_seqs=0, max_num_batched_tokens=16)
    with pytest.raises(InvalidConfig):
        Capacity(max_num_seqs=1, max_num_batched_tokens=16, workspace_rows=0)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_owners_expanded_on_the_device_equal_the_host(lens: list[int]) -> None:
    """Owners of gathered rows need no copy: the prefix sum and its total are enough."""
    owners = expand_owners(torch.tensor(start_loc_of(lens)), sum(lens))
    assert owners.dtype == torch.int32
    assert owners.tolist() == [row for row, count in enumerate(lens) for _ in range(count)]
