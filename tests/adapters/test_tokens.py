"""Lengths, prefix sums, owners, positions and slots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_parallel import ContextParallel, local_lens, local_lens_of_ranks
from mla_contract.adapters.fault import InvalidBatch, InvalidConfig
from mla_contract.adapters.lengths import lens_of
from mla_contract.adapters.tokens import map_tokens, sparse_start_loc, token_slots
from tests.adapters.offsets import start_loc_of
from tests.adapters.scenarios import LOCAL_LENS
from tests.adapters.strategies import ordered_batches, sharings

lens_lists = st.lists(st.integers(0, 300), max_size=9)


@given(lens_lists)
def test_start_loc_of_lengths_returns_to_them(lens: list[int]) -> None:
    """Prefix sum and difference are inverse."""
    assert lens_of(start_loc_of(lens)).tolist() == lens


def test_lens_of_a_falling_prefix_sum_is_refused() -> None:
    """An offset that falls is named; repeated offsets are padding and fine."""
    with pytest.raises(InvalidBatch) as caught:
        lens_of(np.array([0, 3, 2], np.int32))
    assert caught.value.row == 1
    with pytest.raises(InvalidBatch):
        lens_of(np.array([1, 2], np.int32))
    assert lens_of(np.array([0, 3, 3], np.int32)).tolist() == [3, 0]


@given(ordered_batches())
def test_token_map_numbers_each_request_from_its_context(shape: BatchShape) -> None:
    """Owners follow the lengths, and positions run from the context's end; padding is last and zero."""
    tokens = map_tokens(shape)
    expected = [
        (row, context + number)
        for row, (query, context) in enumerate(zip(shape.query_lens, shape.context_lens, strict=True))
        for number in range(query)
    ]
    expected += [(0, 0)] * (shape.num_actual_tokens - len(expected))
    assert list(zip(tokens.requests.tolist(), tokens.positions.tolist(), strict=True)) == expected
    assert tokens.positions.dtype == np.int64
    assert (tokens.visible[: tokens.num_live] == tokens.positions[: tokens.num_live] + 1).all()


@given(ordered_batches(), st.sampled_from([1, 4, 16]), sharings())
def test_slots_over_all_ranks_store_each_token_once(shape: BatchShape, block: int, sharing: ContextParallel) -> None:
    """Slots are distinct, lie in the request's own blocks, and each live token has exactly one owner rank (C5, C7)."""
    if block % sharing.interleave:
        block = sharing.interleave
    columns = -(-int(shape.seq_lens.max(initial=1)) // (block * sharing.size)) + 1
    table = np.arange(shape.num_reqs * columns).reshape(shape.num_reqs, columns)[:, ::-1] + 1
    tokens = map_tokens(shape)
    owners = np.zeros(shape.num_actual_tokens, dtype=np.int64)
    for rank in range(sharing.size):
        slots = token_slots(table, tokens, block, ContextParallel(sharing.size, rank, sharing.interleave))
        stored = slots >= 0
        owners += stored
        assert len(set(slots[stored].tolist())) == int(stored.sum())
        blocks = table[tokens.requests, tokens.positions // (block * sharing.size)]
        assert (slots[stored] // block == blocks[stored]).all()
        assert (slots[~stored] == -1).all()
    assert (owners == (np.arange(shape.num_actual_tokens) < tokens.num_live)).all()


def test_slots_beyond_the_block_table_are_refused() -> None:
    """A position past the last column names its request; a table that is wide enough is accepted (#45380)."""
    shape = BatchShape.of([65], [193])
    with pytest.raises(InvalidBatch) as caught:
        token_slots(np.array([[5, 6]]), map_tokens(shape), 64, ContextParallel())
    assert caught.value.row == 0
    slots = token_slots(np.array([[5, 6, 7, 8]]), map_tokens(shape), 64, ContextParallel())
    assert slots[[0, 63, 64]].tolist() == [7 * 64, 7 * 64 + 63, 8 * 64]


def test_slots_count_blocks_as_the_kernel_does() -> None:
    """With kernel blocks of half the engine's, the second half of a block is the next kernel block (#51031)."""
    shape = BatchShape.of([1], [65])
    halves = np.array([[10, 11]])
    assert token_slots(halves, map_tokens(shape), 64, ContextParallel()).tolist() == [11 * 64]


@given(lens_lists, sharings())
def test_local_lens_over_ranks_sum_to_the_length(lens: list[int], sharing: ContextParallel) -> None:
    """Ranks share without loss, and the two forms agree (D7)."""
    every = local_lens_of_ranks(lens, sharing)
    assert every.sum(axis=-1).tolist() == lens
    for rank in range(sharing.size):
        one = local_lens(lens, ContextParallel(sharing.size, rank, sharing.interleave))
        assert one.tolist() == every[:, rank].tolist()


def test_local_lens_of_vllm_examples_agree() -> None:
    """The example that vLLM's test covers."""
    lens, size, interleave, expected = LOCAL_LENS
    assert local_lens_of_ranks(lens, ContextParallel(size, 0, interleave)).tolist() == [list(row) for row in expected]


def test_sharing_that_cuts_a_state_is_refused() -> None:
    """An interleave that is not a multiple of the compression would lay a state on two ranks."""
    with pytest.raises(InvalidConfig, match="interleave"):
        ContextParallel(2, 0, 6).in_states(4)
    assert ContextParallel(2, 0, 8).in_states(4).interleave == 2
    with pytest.raises(InvalidConfig):
        ContextParallel(2, 2)


@given(ordered_batches(), st.integers(1, 64))
def test_sparse_offsets_count_min_of_position_and_topk(shape: BatchShape, topk: int) -> None:
    """Each token reads the keys up to its own, at most top-k; padding repeats the last offset."""
    tokens = map_tokens(shape)
    counts = np.diff(sparse_start_loc(tokens, topk))
    live = tokens.num_live
    assert (counts[:live] == np.minimum(tokens.positions[:live] + 1, topk)).all()
    assert (counts[live:] == 0).all()


def test_batch_with_contradictory_lengths_is_refused() -> None:
    """Lengths that cannot be are named by row, and their corrected twins are accepted."""
    with pytest.raises(InvalidBatch) as caught:
        BatchShape.of([1, 4], [1, 3])
    assert caught.value.row == 1
    for options in ({"num_actual_tokens": 4}, {"max_query_len": 3}, {"is_prefilling": [True]}):
        with pytest.raises(InvalidBatch):
            BatchShape.of([1, 4], [1, 4], **options)
    with pytest.raises(InvalidBatch):
        BatchShape.of([1, 4], [5])
    assert BatchShape.of([1, 4], [1, 4], num_actual_tokens=6, max_query_len=9).num_live_tokens == 5
