"""Indexer chunks: they tile the prefill tokens within the key buffer and the budget of logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_parallel import ContextParallel, local_lens, local_lens_of_ranks
from mla_contract.adapters.fault import InvalidBatch, InvalidConfig
from mla_contract.adapters.indexer_chunks import IndexerPlan, IndexerRule
from mla_contract.adapters.indexer_plan import plan_indexer_chunks
from mla_contract.adapters.split import Split, SplitRule, split_batch
from mla_contract.adapters.tokens import map_tokens
from tests.adapters.offsets import split_indexer_chunks
from tests.adapters.scenarios import INDEXER, ChunkCase
from tests.adapters.strategies import ordered_batches


def _plan(shape: BatchShape, rule: IndexerRule, threshold: int = 2) -> tuple[Split, IndexerPlan | None]:
    """Return the split and the indexer's plan."""
    split = split_batch(shape, SplitRule(threshold))
    return split, plan_indexer_chunks(shape, map_tokens(shape), split, rule)


@st.composite
def rules(draw: st.DrawFn) -> IndexerRule:
    """Draw a rule whose buffer holds any request of a drawn batch."""
    ratio = draw(st.sampled_from([1, 2, 4]))
    size = draw(st.sampled_from([1, 1, 2, 4]))
    sharing = ContextParallel(size, draw(st.integers(0, size - 1)), ratio * draw(st.integers(1, 3)))
    return IndexerRule(draw(st.integers(110, 400)), draw(st.integers(4, 9000)), ratio, sharing)


@pytest.mark.parametrize("case", INDEXER, ids=lambda case: "-".join(map(str, case.states)))
def test_indexer_chunks_of_an_asserted_case_equal_vllm(case: ChunkCase) -> None:
    """Each chunking that vLLM's own tests assert comes out."""
    rule = IndexerRule(case.buffer_states, case.logits_bytes)
    chunks = split_indexer_chunks(np.array(case.states), np.array(case.query_lens), rule)
    assert [tuple(chunk) for chunk in chunks] == list(case.chunks)


@given(ordered_batches(), rules())
def test_indexer_chunks_tile_the_prefill_tokens(shape: BatchShape, rule: IndexerRule) -> None:
    """Chunks are disjoint and in order; tokens in none belong to requests without a state (P1)."""
    split, plan = _plan(shape, rule)
    if plan is None:
        assert split.num_prefills == 0
        return
    end = split.num_decode_tokens
    owners = map_tokens(shape).requests
    for chunk in plan.chunks:
        assert chunk.token_start >= end
        skipped = owners[end : chunk.token_start]
        assert (shape.seq_lens[skipped] // rule.compress_ratio == 0).all()
        assert chunk.token_end > chunk.token_start
        end = chunk.token_end
    assert (shape.seq_lens[owners[end : shape.num_live_tokens]] // rule.compress_ratio == 0).all()


@given(ordered_batches(), rules())
def test_indexer_chunks_fit_buffer_and_budget(shape: BatchShape, rule: IndexerRule) -> None:
    """Keys fit the consumer's buffer; logits fit the budget, or the chunk is a single query row (P3, P4, P8)."""
    for chunk in _chunks(shape, rule):
        rows = chunk.token_end - chunk.token_start
        assert 0 < chunk.total_seq_lens <= rule.buffer_states
        assert rows * chunk.total_seq_lens * 4 <= rule.logits_bytes or rows == 1
        assert chunk.num_reqs == chunk.request_slice.stop - chunk.request_slice.start


@given(ordered_batches(), rules())
def test_indexer_chunks_skip_the_gather_exactly_for_the_same_requests(shape: BatchShape, rule: IndexerRule) -> None:
    """Keys are reused exactly for the same requests as before and a slice that begins behind their first token (P2)."""
    before = None
    for chunk in _chunks(shape, rule):
        same = before is not None and before.request_slice == chunk.request_slice
        first = int(shape.query_start_loc[chunk.request_slice.start])
        assert chunk.skip_kv_gather == (same and chunk.token_start > first)
        assert chunk.skip_kv_gather == (chunk.token_start > first)
        before = chunk


@given(ordered_batches(), rules())
def test_indexer_key_ranges_end_at_the_token(shape: BatchShape, rule: IndexerRule) -> None:
    """Each token sees its request's states up to its own position, from its request's first row (P5, P6, P7)."""
    sharing = rule.parallel.in_states(rule.compress_ratio)
    tokens = map_tokens(shape)
    for chunk in _chunks(shape, rule):
        span = slice(chunk.token_start, chunk.token_end)
        place = tokens.requests[span] - chunk.request_slice.start
        visible = local_lens(tokens.visible[span] // rule.compress_ratio, sharing)
        sums = chunk.cu_seq_lens if chunk.local_cu_seq_lens is None else chunk.local_cu_seq_lens
        assert (chunk.cu_seqlen_ks == sums[place]).all()
        assert (chunk.cu_seqlen_ke - chunk.cu_seqlen_ks == visible).all()
        assert (chunk.cu_seqlen_ke <= sums[place + 1]).all()
        assert chunk.cu_seq_lens[-1] == chunk.total_seq_lens == len(chunk.token_to_seq())
        if sharing.size > 1:
            totals = local_lens_of_ranks(chunk.seq_lens, sharing).sum(axis=0)
            assert totals.sum() == chunk.total_seq_lens
            assert (chunk.local_total_seq_lens, chunk.max_local_total_seq_lens) == (totals[sharing.rank], totals.max())


def _chunks(shape: BatchShape, rule: IndexerRule) -> Any:
    """Return the chunks of a batch; none without prefills."""
    plan = _plan(shape, rule)[1]
    return () if plan is None else plan.chunks


def test_indexer_request_wider_than_the_buffer_is_refused_by_row() -> None:
    """One long request is never passed on; at exactly the buffer it is accepted (P3, #34553)."""
    rule = IndexerRule(100, 10**6)
    with pytest.raises(InvalidBatch) as caught:
        _plan(BatchShape.of([1, 4, 4], [50, 20, 101]), rule)
    assert caught.value.row == 1
    assert caught.value.facts == {"expected": "at most 100 states", "got": 101}
    assert len(_chunks(BatchShape.of([1, 4, 4], [50, 20, 100]), rule)) == 2


def test_indexer_rule_without_room_is_refused() -> None:
    """A rule that holds nothing is an error; the smallest that holds something is not."""
    for bad in ((0, 4), (1, 3), (1, 4, 0)):
        with pytest.raises(InvalidConfig):
            IndexerRule(*bad)
    assert IndexerRule(1, 4).compress_ratio == 1


def test_indexer_plan_longest_prefill_is_in_tokens() -> None:
    """The longest prefill counts tokens whatever the states, and decodes do not count."""
    _, plan = _plan(BatchShape.of([1, 4, 4], [900, 20, 101]), IndexerRule(1000, 10**6, 4))
    assert plan is not None
    assert plan.max_prefill_seq_len == 101
