"""Context chunks: they partition every context within the workspace, on aligned starts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_contract.adapters.capacity import Capacity, RowUnit
from mla_contract.adapters.context_chunks import plan_context_chunks
from mla_contract.adapters.context_fields import FieldContextPlan
from mla_contract.adapters.context_layout import local_rows
from mla_contract.adapters.context_packed import PackedContextPlan
from mla_contract.adapters.context_parallel import ContextParallel, local_lens, local_lens_of_ranks
from mla_contract.adapters.context_rule import ContextRule
from mla_contract.adapters.fault import InvalidBatch, InvalidConfig
from tests.adapters.offsets import start_loc_of
from tests.adapters.scenarios import CONTEXTS, ContextCase
from tests.adapters.strategies import context_lens, context_rules

QUERY = 4


def _plan(lens: list[int], rule: ContextRule) -> PackedContextPlan:
    """Return the packed plan of prefills with equal queries."""
    plan = plan_context_chunks(np.array(lens), start_loc_of([QUERY] * len(lens)), rule)
    assert isinstance(plan, PackedContextPlan)
    return plan


@pytest.mark.parametrize("case", CONTEXTS.values(), ids=CONTEXTS)
def test_context_plan_of_a_scenario_equals_vllm(case: ContextCase) -> None:
    """Each plan that vLLM 0.33.0 makes in its own tests comes out."""
    rule = ContextRule(case.workspace_rows, case.block_size, ContextParallel(case.size, 0, case.interleave))
    plan = plan_context_chunks(np.array(case.context_lens), start_loc_of(case.query_lens), rule)
    chunks = () if plan is None else plan.chunks if isinstance(plan, PackedContextPlan) else None
    assert chunks is not None
    got = [(chunk.request_slice.start, tuple(chunk.starts), tuple(chunk.seq_lens)) for chunk in chunks]
    assert got == list(case.chunks)


@given(context_lens, context_rules())
def test_context_plan_is_absent_exactly_without_context(lens: list[int], rule: ContextRule) -> None:
    """Presence depends on data alone (X1)."""
    plan = plan_context_chunks(np.array(lens), start_loc_of([QUERY] * len(lens)), rule)
    assert (plan is None) == (max(lens) == 0)


@given(context_lens.filter(any), context_rules())
def test_context_chunks_partition_each_context_in_order(lens: list[int], rule: ContextRule) -> None:
    """Slices follow one another from 0 to the context's end, on aligned starts (X2, X3, X8)."""
    done = [0] * len(lens)
    for chunk in _plan(lens, rule).chunks:
        requests = range(chunk.request_slice.start, chunk.request_slice.stop)
        assert chunk.is_continuation == (chunk.starts[0] > 0)
        assert not chunk.starts[1:].any()
        for request, start, size in zip(requests, chunk.starts, chunk.seq_lens, strict=True):
            assert start == done[request]
            assert start % rule.alignment == 0
            assert size > 0
            done[request] += int(size)
    assert done == lens


@given(context_lens.filter(any), context_rules())
def test_context_chunks_fit_the_workspace_on_every_rank(lens: list[int], rule: ContextRule) -> None:
    """Tokens fit the workspace, and padded rows a rank's share of it (X4)."""
    for chunk in _plan(lens, rule).chunks:
        assert chunk.num_context_tokens <= rule.workspace_rows
        assert chunk.num_local_context_tokens <= rule.workspace_rows // rule.parallel.size


@given(context_lens.filter(any), context_rules())
def test_context_chunk_sums_and_owners_are_exact(lens: list[int], rule: ContextRule) -> None:
    """Prefix sums, owners, query offsets and maxima are those of the chunk's own rows (X5, X9)."""
    for chunk in _plan(lens, rule).chunks:
        count = chunk.request_slice.stop - chunk.request_slice.start
        assert chunk.cu_seq_lens.tolist() == [0, *np.cumsum(chunk.seq_lens).tolist()]
        assert chunk.cu_seq_lens[-1] == chunk.num_context_tokens == len(chunk.token_to_seq())
        assert np.bincount(chunk.token_to_seq(), minlength=count).tolist() == chunk.seq_lens.tolist()
        assert chunk.query_start_loc.tolist() == [QUERY * row for row in range(count + 1)]
        assert chunk.token_slice == slice(QUERY * chunk.request_slice.start, QUERY * chunk.request_slice.stop)
        assert chunk.continuation_token_end == chunk.token_slice.start + QUERY
        assert chunk.max_seq_len == max(chunk.seq_lens)
        assert chunk.max_query_len == QUERY
        assert chunk.all_rows_active
        assert not chunk.cu_seq_lens.flags.writeable


@given(context_lens.filter(any), context_rules())
def test_context_plan_lists_prefills_without_context(lens: list[int], rule: ContextRule) -> None:
    """Empty slices are exactly the prefills that no chunk contains (X6)."""
    plan = _plan(lens, rule)
    expected = [slice(QUERY * row, QUERY * row + QUERY) for row, context in enumerate(lens) if context == 0]
    assert list(plan.empty_token_slices) == expected
    covered = {row for chunk in plan.chunks for row in range(chunk.request_slice.start, chunk.request_slice.stop)}
    assert covered == {row for row, context in enumerate(lens) if context}


@given(context_lens.filter(any), context_rules().filter(lambda rule: rule.parallel.size > 1))
def test_context_chunks_localise_each_slice_by_what_remains(lens: list[int], rule: ContextRule) -> None:
    """True local lengths over ranks sum to the slice, and padded rows hold each of them (X7)."""
    for chunk in _plan(lens, rule).chunks:
        assert chunk.local_starts is not None
        assert chunk.padded_local_seq_lens is not None
        stops = chunk.starts + chunk.seq_lens
        true = local_lens_of_ranks(stops, rule.parallel) - local_lens_of_ranks(chunk.starts, rule.parallel)
        assert true.sum(axis=1).tolist() == chunk.seq_lens.tolist()
        assert (true <= chunk.padded_local_seq_lens[:, np.newaxis]).all()
        assert chunk.local_starts.tolist() == local_lens(chunk.starts, rule.parallel).tolist()
        rows = local_rows(stops, rule.parallel) - local_rows(chunk.starts, rule.parallel)
        assert chunk.padded_local_seq_lens.tolist() == rows.tolist()


@given(context_lens.filter(any), context_rules())
def test_context_plan_stays_within_its_capacity(lens: list[int], rule: ContextRule) -> None:
    """The formula for buffers bounds chunks and cells of any batch that it allows."""
    capacity = Capacity(
        max_num_seqs=len(lens),
        max_num_batched_tokens=64,
        max_context_tokens=sum(lens),
        workspace_rows=rule.workspace_rows,
        span=rule.parallel.span,
    )
    plan = _plan(lens, rule)
    assert len(plan.chunks) <= capacity.max_context_chunks
    assert len(plan.seq_lens) <= capacity.rows(RowUnit.CONTEXT_CELLS)
    assert len(plan.cu_seq_lens) <= capacity.rows(RowUnit.CONTEXT_EDGES)


@given(context_lens.filter(any), context_rules("0.27"), st.integers(1, 4))
def test_context_fields_partition_each_context_in_order(lens: list[int], rule: ContextRule, more: int) -> None:
    """The even split of older releases keeps the same invariants, with empty cells listed (X2 to X6)."""
    rows = rule.alignment * np.count_nonzero(lens) * more
    even = ContextRule(int(rows), rule.block_size, rule.parallel, "0.27")
    plan = plan_context_chunks(np.array(lens), start_loc_of([QUERY] * len(lens)), even)
    assert isinstance(plan, FieldContextPlan)
    assert plan.seq_lens.sum(axis=0).tolist() == lens
    assert (plan.starts % even.alignment == 0).all()
    assert max(plan.chunk_total_token) <= even.workspace_rows
    assert max(plan.seq_tot) <= even.workspace_rows // even.parallel.size
    assert (np.diff(plan.cu_seq_lens, axis=1) == plan.seq_lens).all()
    assert plan.empty_cells.tolist() == np.argwhere(plan.seq_lens == 0).tolist()
    assert [len(plan.token_to_seq(index)) for index in range(len(plan.seq_tot))] == list(plan.chunk_total_token)


def test_context_workspace_below_the_alignment_is_refused() -> None:
    """A workspace that holds no aligned piece is an error; one piece is enough for the packed plan."""
    with pytest.raises(InvalidConfig, match="workspace_rows"):
        ContextRule(63, 64)
    assert len(_plan([64, 64], ContextRule(64, 64)).chunks) == 2
    with pytest.raises(InvalidBatch, match="workspace_rows"):
        plan_context_chunks(np.array([64, 64]), start_loc_of([4, 4]), ContextRule(64, 64, release="0.27"))
