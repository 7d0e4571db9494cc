"""The split, in whatever order the rows stand."""

from __future__ import annotations

from typing import Unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_contract.adapters.batch import BatchOptions, BatchShape
from mla_contract.adapters.fault import InvalidBatch
from mla_contract.adapters.split import Split, SplitRule, split_batch
from tests.adapters.scenarios import ORDERS, SPLITS, OrderCase, SplitCase


def _shape(query_lens: tuple[int, ...] | list[int], context: int = 9, **options: Unpack[BatchOptions]) -> BatchShape:
    """Return a batch whose live rows all have the same context."""
    return BatchShape.of(query_lens, [query + context if query else 0 for query in query_lens], **options)


@pytest.mark.parametrize("case", SPLITS.values(), ids=SPLITS)
def test_split_of_an_asserted_case_equals_vllm(case: SplitCase) -> None:
    """Each split that vLLM's own tests assert comes out."""
    shape = _shape(case.query_lens, num_actual_tokens=case.num_tokens, is_prefilling=case.is_prefilling)
    assert split_batch(shape, SplitRule(case.threshold, case.uniform, case.short_extends_decode)) == case.expected


@pytest.mark.parametrize("case", ORDERS.values(), ids=ORDERS)
def test_split_of_a_reordered_batch_decodes_every_row_that_can(case: OrderCase) -> None:
    """In the order that vLLM's reordering asserts, every short row with context decodes; before, some may prefill."""

    def decoding(order: tuple[int, ...]) -> int:
        """Return how many short rows with context decode."""
        rows = [case.requests[row] for row in order]
        lens, totals = [row[0] for row in rows], [row[0] + row[1] for row in rows]
        split = split_batch(BatchShape.of(lens, totals), SplitRule(case.threshold))
        return sum(short(row) for row in rows[: split.num_decodes])

    def short(row: tuple[int, int, int]) -> bool:
        return row[0] <= case.threshold and row[1] > 0

    assert decoding(case.order) == sum(map(short, case.requests))
    assert decoding(tuple(range(len(case.requests)))) <= decoding(case.order)


def test_split_of_uniform_decodes_of_two_lengths_prefills_the_second() -> None:
    """Rows are ordered by class, not by length: one token, then two, is a decode and a prefill."""
    assert split_batch(_shape([1, 2]), SplitRule(2, require_uniform=True)) == Split(1, 1, 1, 2)
    assert split_batch(_shape([1, 2]), SplitRule(2)) == Split(2, 0, 3, 0)


def test_split_of_a_dummy_batch_of_fresh_rows_decodes_the_short_one() -> None:
    """A start-up batch of one token and five over sequences of one and six: no row is refused for its context."""
    assert split_batch(BatchShape.of([1, 5], [1, 6]), SplitRule(1)) == Split(1, 1, 1, 5)


def test_split_flags_of_live_rows_are_padded_with_false() -> None:
    """A runner flags live requests alone; a live row without a flag is refused."""
    rule = SplitRule(2, treat_short_extends_as_decodes=False)
    assert split_batch(_shape([1, 1, 0, 0], is_prefilling=[False, True]), rule) == Split(1, 3, 1, 1)
    with pytest.raises(InvalidBatch, match="is_prefilling"):
        _shape([1, 1, 1, 0], is_prefilling=[False, True])


def test_split_of_an_empty_batch_has_neither_part() -> None:
    """No request makes no decode and no prefill, under every rule."""
    for uniform in (False, True):
        assert split_batch(BatchShape.of([], []), SplitRule(2, uniform)) == Split(0, 0, 0, 0)


def test_split_with_override_lengths_judges_by_them_and_counts_real_tokens() -> None:
    """Under prefill context parallelism a rank holds a piece of a long prompt, which is still a prefill."""
    sharded = _shape([1, 2], split_query_lens=[1, 64])
    assert split_batch(sharded, SplitRule(2)) == Split(1, 1, 1, 2)
    assert split_batch(_shape([1, 2]), SplitRule(2)) == Split(2, 0, 3, 0)


def test_split_without_flags_is_refused_only_where_they_decide() -> None:
    """Short extends cannot be told from decodes without is_prefilling."""
    rule = SplitRule(2, treat_short_extends_as_decodes=False)
    with pytest.raises(InvalidBatch, match="is_prefilling"):
        split_batch(_shape([1, 2]), rule)
    assert split_batch(_shape([1, 2], is_prefilling=[False, True]), rule) == Split(1, 1, 1, 2)


@pytest.mark.parametrize(("release", "expected"), [("0.25", 1), ("0.26", 0), ("0.33", 0)])
def test_split_of_a_lone_short_extend_depends_on_the_release(release: str, expected: int) -> None:
    """Up to 0.25 the uniform shortcut ignored is_prefilling."""
    rule = SplitRule(1, require_uniform=True, treat_short_extends_as_decodes=False, release=release)
    assert split_batch(_shape([1], is_prefilling=[True]), rule).num_decodes == expected


@pytest.mark.parametrize(("release", "expected"), [("0.30", 1), ("0.31", 2)])
def test_split_at_a_padding_row_depends_on_the_release(release: str, expected: int) -> None:
    """Up to 0.30 a padding row started the prefills of a uniform batch that is not all decodes."""
    assert split_batch(_shape([1, 0, 2]), SplitRule(1, require_uniform=True, release=release)).num_decodes == expected


@pytest.mark.parametrize(("release", "expected"), [("0.18", 1), ("0.34", 2), ("1.0", 2), ("main", 2), (None, 2)])
def test_split_for_a_release_outside_the_compared_range_is_the_nearest_ones(release: str | None, expected: int) -> None:
    """An older release divides as the oldest that was compared, every other one as the newest."""
    rule = SplitRule(1, require_uniform=True, release=release)
    assert split_batch(_shape([1, 0, 2]), rule).num_decodes == expected


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["0.25", "0.30", "0.33"]),
    st.integers(0, 3),
)
def test_split_sums_to_the_batch(lens: list[int], threshold: int, uniform: bool, release: str, padding: int) -> None:
    """Requests and tokens of both parts sum to the batch's, and the boundary stands at its offset (C10 a)."""
    shape = _shape(lens, num_actual_tokens=sum(lens) + padding)
    split = split_batch(shape, SplitRule(threshold, uniform, release=release))
    assert split.num_decodes + split.num_prefills == shape.num_reqs
    assert split.num_decode_tokens + split.num_prefill_tokens == shape.num_actual_tokens
    if split.num_prefills:
        assert split.num_decode_tokens == shape.query_start_loc[split.num_decodes]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(1, 4), st.booleans())
def test_split_is_maximal_and_never_starts_prefills_at_padding(lens: list[int], threshold: int, uniform: bool) -> None:
    """Decodes are short, uniform if they must be, and the next row is a live row that is not one (C10 b, d, e)."""
    split = split_batch(_shape(lens), SplitRule(threshold, uniform))
    decodes = lens[: split.num_decodes]
    assert all(length <= threshold for length in decodes)
    if uniform and threshold > 1:
        assert set(decodes) <= {decodes[0], 0} if decodes else True
    if split.num_prefills:
        first = lens[split.num_decodes]
        assert first != 0
        assert first > threshold or (uniform and first != lens[0])
