"""Lengths as callers give them: nothing is truncated, and nothing wraps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.fault import InvalidBatch
from mla_contract.adapters.plan import PlanConfig, plan_batch
from mla_contract.adapters.tokens import map_tokens, sparse_start_loc, token_slots

MOST = 2**31 - 1
TABLE = np.array([[3, 4], [5, 6]])


@pytest.mark.parametrize(
    ("query_lens", "seq_lens", "row"),
    [
        ([2**30] * 3, [2**30] * 3, 1),
        ([1, 2**32 + 1], [9, 2**32 + 1], 1),
        ([1, 2**70], [9, 9], 1),
        ([1, 1], [9, 2**31], 1),
        ([1, -(2**31)], [9, 9], 1),
        ([1, 0], [9, -(2**31)], 1),
        ([1, 1], [9, -(2**31)], 1),
        ([1, -(2**70)], [9, 9], 1),
        ([1, -1], [9, 9], 1),
        ([1, 10], [9, 9], 1),
        ([1, True], [9, 9], 1),
        ([1, 2.0], [9, 9], 1),
        ([1, "2"], [9, 9], 1),
        ([1, None], [9, 9], 1),
        ([1, [2]], [9, 9], 1),
        (np.array([1, 2**32 + 1]), [9, 9], 1),
        (np.array([1, 2**63 + 5], np.uint64), [9, 9], 1),
        (np.array([1.0, 2.0]), [9, 9], None),
        (np.array([True, True]), [9, 9], None),
        (np.array(["1", "2"]), [9, 9], None),
        (np.array([[1, 2]]), [9, 9], None),
        ([1, 2], np.array([[9, 9]]), None),
        ([1, 2], [9, 9, 9], None),
        (np.int32(3), [9], None),
    ],
)
def test_lengths_that_are_not_legal_ints_are_refused(query_lens: Any, seq_lens: Any, row: int | None) -> None:
    """What is not an int, does not fit int32 or contradicts another length is refused, and its row is named."""
    with pytest.raises(InvalidBatch) as caught:
        BatchShape.of(query_lens, seq_lens)
    assert caught.value.row == row


@pytest.mark.parametrize(
    ("query_lens", "seq_lens"),
    [
        ([1, 2], (9, 9)),
        ([np.int64(1), 2], [9, 9]),
        (np.array([1, 2], np.uint8), np.array([9, 9], np.int64)),
        (torch.tensor([1, 2]), torch.tensor([9, 9], dtype=torch.int32)),
        ([2**30, 2**30 - 1], [MOST, MOST]),
        ([], []),
        ([], np.array([], np.int32)),
    ],
)
def test_lengths_of_every_width_are_kept_as_int32(query_lens: Any, seq_lens: Any) -> None:
    """Legal ints of any width are accepted up to the largest int32, and are the caller's."""
    shape = BatchShape.of(query_lens, seq_lens)
    assert shape.query_lens.tolist() == [int(each) for each in query_lens]
    assert shape.seq_lens.tolist() == [int(each) for each in seq_lens]
    assert {shape.query_lens.dtype, shape.seq_lens.dtype, shape.query_start_loc.dtype} == {np.dtype(np.int32)}
    assert shape.num_live_tokens == sum(int(each) for each in query_lens)


@pytest.mark.parametrize(
    ("start_loc", "row"),
    [([0, 3, 2], 1), ([0, MOST, -(2**31)], 1), ([0, 3, 2**32 + 4], 2), ([0.0, 3.0, 4.0], 0), ([1, 2, 3], None)],
)
def test_offsets_that_fall_or_do_not_fit_are_refused(start_loc: Any, row: int | None) -> None:
    """Offsets that fall, wrap, or are not ints are refused; offsets that repeat are padding."""
    with pytest.raises(InvalidBatch) as caught:
        BatchShape.from_start_loc(start_loc, [MOST, MOST])
    assert caught.value.row == row
    assert BatchShape.from_start_loc([0, MOST, MOST], [MOST, 0]).query_lens.tolist() == [MOST, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"num_actual_tokens": 3.0},
        {"num_actual_tokens": True},
        {"num_actual_tokens": 2**31},
        {"max_query_len": 2.5},
        {"max_query_len": "2"},
        {"is_prefilling": [0, 1]},
        {"is_prefilling": ["no", "yes"]},
        {"is_prefilling": [True]},
        {"split_query_lens": [1.0, 2.0]},
        {"split_query_lens": [1, -2]},
        {"split_query_lens": [1]},
        {"block_table": np.array([3, 4])},
        {"block_table": np.array([[3.0], [4.0]])},
        {"block_table": np.array([[True], [True]])},
        {"block_table": np.array([[3, 4]])},
    ],
)
def test_options_of_the_wrong_kind_are_refused(options: Any) -> None:
    """Whatever is not of the type and the shape that an attribute has is refused."""
    with pytest.raises(InvalidBatch, match=next(iter(options))):
        BatchShape.of([1, 2], [9, 9], **options)


def test_options_of_the_right_kind_are_kept() -> None:
    """Each option of the test above has a legal value."""
    shape = BatchShape.of(
        [1, 2],
        [9, 9],
        num_actual_tokens=np.int64(4),  # type: ignore[arg-type]  # an int of NumPy's is an int
        max_query_len=7,
        is_prefilling=[False, True],
        split_query_lens=(1, 2),
        block_table=TABLE,
    )
    assert (shape.num_actual_tokens, shape.max_query_len) == (4, 7)
    assert shape.is_prefilling is not None
    assert shape.is_prefilling.tolist() == [False, True]
    assert BatchShape.of([1, 2], [9, 9]).is_prefilling is None


def test_option_that_does_not_exist_is_a_type_error() -> None:
    """A misspelt option is not passed over."""
    with pytest.raises(TypeError, match="num_actual_token"):
        BatchShape.of([1], [1], num_actual_token=1)  # type: ignore[call-arg]
    assert BatchShape.of([1], [1], num_actual_tokens=1).num_actual_tokens == 1


def test_slots_of_a_negative_block_are_refused() -> None:
    """A block of -5 would make slot -78, and one of -1 a token that seems stored elsewhere; stale ids are not read."""
    shape = BatchShape.of([1, 1], [9, 19])
    for bad in (-5, -1):
        with pytest.raises(InvalidBatch, match="block_table") as caught:
            token_slots(np.array([[3, 4], [5, bad]]), map_tokens(shape), 16, ContextParallel())
        assert caught.value.row == 1
    stale = np.array([[3, -1], [5, 6]])
    assert token_slots(stale, map_tokens(shape), 16, ContextParallel()).tolist() == [3 * 16 + 8, 6 * 16 + 2]


def test_plan_of_a_short_block_table_is_refused() -> None:
    """A table without a column for the sequence's end names the row; one column more is accepted."""
    config = PlanConfig(block_size=16)
    with pytest.raises(InvalidBatch, match="too narrow") as caught:
        plan_batch(BatchShape.of([1, 1], [9, 33], block_table=TABLE), config)
    assert caught.value.row == 1
    assert plan_batch(BatchShape.of([1, 1], [9, 32], block_table=TABLE), config).slot_mapping is not None


def test_sparse_offsets_beyond_int32_are_refused() -> None:
    """A step whose tokens read more keys than int32 counts is refused; the step before that is planned."""
    tokens = map_tokens(BatchShape.of([1] * 3, [2**30] * 3))
    with pytest.raises(InvalidBatch, match="int32") as caught:
        sparse_start_loc(tokens, 2**30)
    assert caught.value.row == 1
    assert sparse_start_loc(tokens, 2**29)[-1] == 3 * 2**29
