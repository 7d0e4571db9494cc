"""Decode rows: what each token may see, flattened and native."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_parallel import ContextParallel, local_lens
from mla_contract.adapters.decode import DecodePlan, DecodeRule, expand_decodes
from mla_contract.adapters.fault import InvalidBatch, InvalidConfig
from mla_contract.adapters.split import Split, SplitRule, split_batch
from mla_contract.adapters.tokens import map_tokens
from tests.adapters.scenarios import DECODE_LENS
from tests.adapters.strategies import ordered_batches


def expand(shape: BatchShape, rule: DecodeRule, threshold: int = 8) -> DecodePlan:
    """Return the decode rows of a batch that has some."""
    plan = expand_decodes(shape, map_tokens(shape), split_batch(shape, SplitRule(threshold)), rule)
    assert plan is not None
    return plan


def test_native_decode_of_vllm_example_equals_it() -> None:
    """Ragged rows are packed at the left and 0 behind, as vLLM's own test of the top-k lengths expects."""
    query_lens, seq_lens, expected = DECODE_LENS
    plan = expand(BatchShape.of(query_lens, seq_lens), DecodeRule(next_n=4))
    assert plan.seq_lens.reshape(-1).tolist() == list(expected)
    assert plan.requires_padding


def test_flattened_decode_with_padding_request_and_tokens_gives_zeros() -> None:
    """Rows behind the live tokens have length 0, no request and no query token."""
    shape = BatchShape.of([3, 1, 4, 0], [10, 7, 12, 0], num_actual_tokens=10)
    plan = expand(shape, DecodeRule(flatten=True, next_n=4))
    assert plan.seq_lens.tolist() == [8, 9, 10, 7, 9, 10, 11, 12, 0, 0]
    assert plan.decode_lens.tolist() == [1] * 8 + [0] * 2
    assert plan.row_requests.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, -1, -1]


def _over_ranks(shape: BatchShape, split: Split, rule: DecodeRule) -> np.ndarray[Any, Any]:
    """Return the rows' lengths with nothing shared."""
    plan = expand_decodes(shape, map_tokens(shape), split, DecodeRule(rule.flatten, rule.next_n, rule.compress_ratio))
    assert plan is not None
    return plan.seq_lens


def _global_lens(shape: BatchShape, split: Split, plan: DecodePlan) -> list[int]:
    """Return a length for each request, or the keys of each token where requests have several rows."""
    if plan.flattened and plan.max_decode_len > 1:
        return [int(length) for length in map_tokens(shape).visible[: split.num_decode_tokens]]
    return [int(length) for length in shape.seq_lens[: split.num_decodes]]


def test_global_lengths_of_single_tokens_have_no_rows_for_padding_tokens() -> None:
    """Ten requests in a graph of 12 tokens: the lengths over all ranks are the requests', as in vLLM."""
    shape = BatchShape.of([1] * 10, range(5, 15), num_actual_tokens=12)
    plan = expand(shape, DecodeRule(flatten=True, parallel=ContextParallel(2)))
    assert plan.global_seq_lens is not None
    assert plan.global_seq_lens.tolist() == list(range(5, 15))
    assert len(plan.seq_lens) == 12


def test_native_global_lengths_are_one_for_each_request() -> None:
    """Two tokens at 5 and 6 keys over four ranks: the request has 6; flattened, each token has its own."""
    shape, sharing = BatchShape.of([2], [6]), ContextParallel(4)
    native = expand(shape, DecodeRule(next_n=2, parallel=sharing)).global_seq_lens
    flat = expand(shape, DecodeRule(flatten=True, parallel=sharing)).global_seq_lens
    assert native is not None and flat is not None
    assert (native.tolist(), flat.tolist()) == ([6], [5, 6])


@given(ordered_batches(), st.booleans(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_decode_rows_keep_their_bounds(shape: BatchShape, flatten: bool, ratio: int, size: int) -> None:
    """Lengths lie in 1 to s on live cells and are 0 on padding; query tokens sum to the live ones (D1 to D5)."""
    split = split_batch(shape, SplitRule(2))
    rule = DecodeRule(flatten, 2, ratio, ContextParallel(size, 0, ratio))
    plan = expand_decodes(shape, map_tokens(shape), split, rule)
    if plan is None:
        assert split.num_decodes == 0
        return
    lens = shape.query_lens[: split.num_decodes]
    assert plan.num_rows == len(plan.seq_lens) == (split.num_decode_tokens if flatten else split.num_decodes)
    assert plan.decode_lens.sum() == lens.sum() <= split.num_decode_tokens
    states = plan.seq_lens
    if size > 1:
        states = _over_ranks(shape, split, rule)
        assert plan.global_seq_lens is not None
        assert plan.global_seq_lens.tolist() == _global_lens(shape, split, plan)
    expected = [
        (context + number + 1) // ratio
        for query, context in zip(lens, shape.context_lens, strict=False)
        for number in range(query)
    ]
    if flatten:
        assert states.tolist() == expected + [0] * (plan.num_rows - len(expected))
    else:
        live = np.arange(states.shape[1]) < lens[:, np.newaxis]
        assert states[live].tolist() == expected
        assert not states[~live].any()
    if not plan.requires_padding and not flatten:
        assert split.num_decode_tokens == split.num_decodes * plan.max_decode_len


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 99)), min_size=1, max_size=6), st.booleans())
def test_decode_is_localised_after_the_expansion(rows: list[tuple[int, int]], flatten: bool) -> None:
    """Each token's own length is shared out, and over ranks they sum to it (D7)."""
    shape = BatchShape.of([query for query, _ in rows], [query + context for query, context in rows])
    plans = [expand(shape, DecodeRule(flatten, 4, 1, ContextParallel(4, rank, 2))) for rank in range(4)]
    total = expand(shape, DecodeRule(flatten, 4)).seq_lens
    assert (np.sum([plan.seq_lens for plan in plans], axis=0) == total).all()
    assert plans[0].global_seq_lens is not None
    assert plans[0].global_seq_lens.tolist() == (total if flatten else shape.seq_lens).tolist()
    assert (plans[1].seq_lens == local_lens(total, ContextParallel(4, 1, 2))).all()
    assert total.max() == shape.seq_lens.max()


def test_native_decode_longer_than_a_row_is_refused() -> None:
    """A query beyond next_n has no native row; flattened it has as many as it needs."""
    shape = BatchShape.of([1, 3], [9, 9])
    with pytest.raises(InvalidBatch) as caught:
        expand(shape, DecodeRule(next_n=2))
    assert caught.value.row == 1
    assert expand(shape, DecodeRule(next_n=3)).max_decode_len == 3
    assert expand(shape, DecodeRule(flatten=True, next_n=2)).num_rows == 4
    with pytest.raises(InvalidConfig):
        DecodeRule(next_n=0)
