"""Batches of public defects, by issue number: the fault is refused or planned right, and its twin is accepted."""

from __future__ import annotations

import numpy as np
import pytest

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_chunks import plan_context_chunks
from mla_contract.adapters.context_fields import FieldContextPlan
from mla_contract.adapters.context_packed import PackedContextPlan
from mla_contract.adapters.context_parallel import ContextParallel, local_lens, local_lens_of_ranks
from mla_contract.adapters.context_rule import ContextRule
from mla_contract.adapters.decode import DecodeRule
from mla_contract.adapters.fault import InvalidBatch
from mla_contract.adapters.indexer_chunks import IndexerRule
from mla_contract.adapters.plan import PlanConfig, plan_batch
from mla_contract.adapters.split import Split, SplitRule, split_batch
from tests.adapters.offsets import split_indexer_chunks, start_loc_of
from tests.adapters.test_decode import expand


def _packed(lens: list[int], rule: ContextRule) -> PackedContextPlan:
    plan = plan_context_chunks(np.array(lens), start_loc_of([4] * len(lens)), rule)
    assert isinstance(plan, PackedContextPlan)
    return plan


def test_vllm_47381_short_row_before_uniform_decodes_makes_prefills_of_them() -> None:
    """One shorter row in front makes prefills of three decodes: slower and right, and what the engine does as well."""
    rule = SplitRule(4, require_uniform=True)
    wrong = BatchShape.of([1, 4, 4, 4], [40, 50, 60, 70])
    assert split_batch(wrong, rule) == Split(1, 3, 1, 12)
    right = BatchShape.of([4, 4, 4, 1], [50, 60, 70, 40])
    assert split_batch(right, rule) == Split(3, 1, 12, 1)


def test_vllm_39277_stale_offsets_behind_the_live_row_are_refused() -> None:
    """Offsets that an earlier step left say 25 tokens where the padded batch has 8."""
    with pytest.raises(InvalidBatch, match="num_actual_tokens"):
        BatchShape.from_start_loc([0, 1, 9, 17, 25], [9, 9, 9, 9], num_actual_tokens=8)
    shape = BatchShape.from_start_loc([0, 1, 1, 1, 1], [9, 0, 0, 0], num_actual_tokens=8)
    plan = expand(shape, DecodeRule(flatten=True, next_n=2), threshold=2)
    assert plan.num_rows == 8
    assert plan.decode_lens.sum() == 1


def test_vllm_51593_padded_slot_has_no_negative_length() -> None:
    """A padding request of a two-token decode has lengths 0, not -1."""
    plan = expand(BatchShape.of([2, 0], [9, 0]), DecodeRule(next_n=2))
    assert plan.seq_lens.tolist() == [[8, 9], [0, 0]]


def test_vllm_47766_equal_keys_with_other_context_have_other_lengths() -> None:
    """Top-4 of 8 tokens: 26 keys without context, 32 with; a schedule keyed without it would be stale."""
    config = PlanConfig(block_size=16, topk_tokens=4)
    totals = []
    for context in (0, 8):
        offsets = plan_batch(BatchShape.of([8], [8 + context]), config).sparse_start_loc
        assert offsets is not None
        totals.append(int(offsets[-1]))
    assert totals == [26, 32]


def test_vllm_51252_chunks_count_states_not_tokens() -> None:
    """Six requests of 2 states do not fit 10 rows; the ten of the buffer are states of 4 tokens."""
    states, lens = np.full(6, 8) // 4, np.ones(6, dtype=np.int32)
    chunks = split_indexer_chunks(states, lens, IndexerRule(40 // 4, 10**6, 4))
    assert [(chunk.request_begin, chunk.request_end) for chunk in chunks] == [(0, 5), (5, 6)]
    assert len(split_indexer_chunks(states, lens, IndexerRule(12, 10**6, 4))) == 1


def test_vllm_48642_decode_rows_cover_decode_tokens_only() -> None:
    """A decode beside a long prefill: one row, not 65."""
    config = PlanConfig(block_size=16, topk_tokens=2048, flatten_decodes=True)
    plan = plan_batch(BatchShape.of([1, 64], [100, 64]), config)
    assert plan.decode is not None
    assert plan.decode.num_rows == len(plan.decode.row_requests) == plan.split.num_decode_tokens == 1
    assert len(plan.tokens.requests) == 65


@pytest.mark.parametrize("release", ["0.27", "0.33"])
def test_vllm_41229_chunk_sizes_divide_between_ranks(release: str) -> None:
    """65536 rows over 3 or 5 prefills are 21845 or 13107, which 8 ranks do not divide; our pieces are aligned."""
    rule = ContextRule(65536, 16, ContextParallel(8, 0, 1), release)
    for count in range(1, 14):
        plan = plan_context_chunks(np.full(count, 70_000), start_loc_of([4] * count), rule)
        if isinstance(plan, FieldContextPlan):
            assert not (plan.starts % 8).any()
        else:
            assert plan is not None
            assert not any(int(start) % 8 for chunk in plan.chunks for start in chunk.starts)


def test_ascend_5767_chunks_align_to_block_times_ranks() -> None:
    """A piece of 48 rows begins no chunk where blocks of 16 are dealt to 4 ranks in runs of 16."""
    rule = ContextRule(64 + 48, 16, ContextParallel(4, 0, 16))
    starts = [int(start) for chunk in _packed([200], rule).chunks for start in chunk.starts]
    assert starts == [0, 64, 128, 192]


def test_vllm_28514_local_length_is_of_what_remains_in_the_chunk() -> None:
    """Context 10 in chunks of 4 over two ranks: 2, 2, 1 rows here, not 5 each."""
    plan = _packed([10], ContextRule(4, 1, ContextParallel(2)))
    rows = [chunk.padded_local_seq_lens for chunk in plan.chunks]
    assert [part.tolist() for part in rows if part is not None] == [[2], [2], [1]]


def test_vllm_29644_padding_requests_count_as_decodes() -> None:
    """Rows without query tokens belong to the captured decodes."""
    shape = BatchShape.of([4, 4, 4, 0, 0, 0, 0, 0], [9, 9, 9, 0, 0, 0, 0, 0])
    assert split_batch(shape, SplitRule(4, require_uniform=True)) == Split(8, 0, 12, 0)


def test_vllm_34187_padded_requests_with_unpadded_tokens_are_refused() -> None:
    """Two requests of one token each cannot hold one token; with a padding request they can."""
    with pytest.raises(InvalidBatch, match="num_actual_tokens"):
        BatchShape.of([1, 1], [1, 1], num_actual_tokens=1)
    assert split_batch(BatchShape.of([1, 0], [1, 0], num_actual_tokens=1), SplitRule()).num_decodes == 2


def test_vllm_27491_empty_cells_are_absent_or_listed() -> None:
    """Contexts 4 and 12 in chunks of 4: packed chunks have no empty cell, the even split lists both of its own."""
    assert all((chunk.seq_lens > 0).all() for chunk in _packed([4, 12], ContextRule(4, 1)).chunks)
    fields = plan_context_chunks(np.array([4, 12]), start_loc_of([4, 4]), ContextRule(8, 1, release="0.27"))
    assert isinstance(fields, FieldContextPlan)
    assert fields.seq_lens.tolist() == [[4, 4], [0, 4], [0, 4]]
    assert fields.empty_cells.tolist() == [[1, 0], [2, 0]]
    assert fields.has_empty_context == (False, True, True)


def test_vllm_49294_rows_without_keys_are_listed_by_their_tokens() -> None:
    """Prefills without context are named, so that a consumer masks whatever their LSE is."""
    assert _packed([4, 0, 2, 0], ContextRule(64, 1)).empty_token_slices == (slice(4, 8), slice(12, 16))


def test_vllm_38416_ranks_without_keys_have_length_zero() -> None:
    """Five tokens over eight ranks leave three with none, which decode must know."""
    assert local_lens_of_ranks([5], ContextParallel(8)).tolist() == [[1, 1, 1, 1, 1, 0, 0, 0]]
    plan = expand(BatchShape.of([1], [5]), DecodeRule(parallel=ContextParallel(8, 6)))
    assert plan.seq_lens.tolist() == [[0]]
    assert plan.global_seq_lens is not None
    assert plan.global_seq_lens.tolist() == [5]


def test_vllm_52500_token_padding_needs_padding_although_lengths_are_equal() -> None:
    """Eight tokens over six requests of one token cannot be reshaped; six can."""
    padded = expand(BatchShape.of([1] * 6, [9] * 6, num_actual_tokens=8), DecodeRule())
    assert padded.requires_padding
    assert not expand(BatchShape.of([1] * 6, [9] * 6), DecodeRule()).requires_padding


def test_vllm_50497_one_long_context_does_not_multiply_chunks() -> None:
    """60000 and seven times 1000 rows fit two packed chunks; the even split needs eight, with 49 empty cells."""
    lens = [60_000, *[1000] * 7]
    assert len(_packed(lens, ContextRule(65536, 16)).chunks) == 2
    even = plan_context_chunks(np.array(lens), start_loc_of([4] * 8), ContextRule(65536, 16, release="0.27"))
    assert isinstance(even, FieldContextPlan)
    assert (len(even.seq_tot), len(even.empty_cells)) == (8, 49)


def test_vllm_32716_short_fresh_prompt_is_a_prefill_where_extends_are() -> None:
    """A prompt of K+1 tokens looks like a verification; its flag tells, where the backend asks for it."""
    shape = BatchShape.of([4], [4], is_prefilling=[True])
    assert split_batch(shape, SplitRule(4, treat_short_extends_as_decodes=False)).num_prefills == 1
    assert split_batch(shape, SplitRule(4)).num_decodes == 1


def test_vllm_28990_total_length_is_taken_before_localisation() -> None:
    """Nine tokens over two ranks: the total stays 9, and this rank has 5."""
    plan = expand(BatchShape.of([1], [9]), DecodeRule(parallel=ContextParallel(2)))
    assert plan.global_seq_lens is not None
    assert (plan.global_seq_lens.tolist(), plan.seq_lens.tolist()) == ([9], [[5]])


def test_localised_bounds_come_from_each_token_not_from_the_request() -> None:
    """World 2, rank 1, bounds 8, 9, 10: local 4, 4, 5 after the expansion; before it they would be 3, 4, 5."""
    plan = expand(BatchShape.of([3], [10]), DecodeRule(flatten=True, next_n=3, parallel=ContextParallel(2, 1)))
    assert plan.seq_lens.tolist() == [4, 4, 5]
    assert local_lens([10], ContextParallel(2, 1)).tolist() == [5]
