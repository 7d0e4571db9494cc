"""Batches that runners make and that look odd: the builders of both sparse backends take them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mla_contract.adapters.fault import InvalidBatch
from mla_contract.backends.cuda_sparse.builder import CudaSparseBuilder
from mla_contract.backends.rocm_sparse.builder import RocmSparseBuilder
from mla_contract.testing.records import PlainBatch
from tests.backends.sparse.steps import SMALL, step_batch, token_padded

CONFIG = replace(SMALL, max_num_seqs=16, max_capture_size=16, max_num_batched_tokens=512, next_n=2)
Builder = type[CudaSparseBuilder] | type[RocmSparseBuilder]
BUILDERS = pytest.mark.parametrize("builder", [CudaSparseBuilder, RocmSparseBuilder])

replayed = token_padded(step_batch((1, 1, 1, 0), (31, 40, 50, 0), CONFIG), 4)
mixed = token_padded(step_batch((1, 1, 5, 0, 0), (31, 40, 60, 0, 0), CONFIG), 16)
by_length = step_batch((2, 1, 20, 30), (31, 1, 20, 90), CONFIG)
bounded = replace(by_length, max_seq_len=4000, seq_lens=by_length.seq_lens - torch.tensor([0, 0, 0, 1]))
ODD: dict[str, tuple[PlainBatch, tuple[int, ...]]] = {
    "replay of decodes": (replayed, (4, 0, 4, 0)),
    "replay of a mixed batch": (mixed, (2, 3, 2, 14)),
    "fresh prompt before a chunk": (by_length, (2, 2, 3, 50)),
    "flags of live requests": (replace(replayed, is_prefilling=torch.tensor([False, True, False])), (4, 0, 4, 0)),
    "bounds above the lengths": (bounded, (2, 2, 3, 50)),
}


@BUILDERS
@pytest.mark.parametrize("name", ODD)
def test_builder_takes_what_a_runner_makes(name: str, builder: Builder) -> None:
    """No batch is refused; counts are the engine's, padding tokens own request 0, and no row of them reads a key."""
    of, split = ODD[name]
    record, indexer = builder(CONFIG).build_pair(of)
    got = (record.num_decodes, record.num_prefills, record.num_decode_tokens, indexer.num_prefill_tokens)
    assert got == split
    live = int(of.query_start_loc_cpu[-1])
    assert record.req_id_per_token.tolist()[live:] == [0] * (of.num_actual_tokens - live)
    if indexer.decode is not None and indexer.num_prefills == 0:
        assert not indexer.decode.seq_lens.reshape(-1)[live:].any()


@BUILDERS
def test_builder_refuses_a_live_request_without_a_flag(builder: Builder) -> None:
    """Missing flags are those of padding; fewer than there are live requests say nothing."""
    with pytest.raises(InvalidBatch, match="is_prefilling"):
        builder(CONFIG).build(replace(by_length, is_prefilling=torch.tensor([False, False])))


@BUILDERS
def test_builder_keeps_the_bound_on_decode_queries_where_everything_decodes(builder: Builder) -> None:
    """A graph is captured with one token a request and a promise of two; beside prefills, the decodes tell."""
    captured = replace(step_batch((1, 1), (31, 40), CONFIG), max_query_len=2)
    assert builder(CONFIG).build(captured).decode_max_query_len == 2
    assert builder(CONFIG).build(by_length).decode_max_query_len == 2
    assert builder(CONFIG).build(step_batch((1, 9), (31, 40), CONFIG)).decode_max_query_len == 1


@BUILDERS
@pytest.mark.parametrize("more", [1, 9])
def test_builder_takes_a_block_table_wider_than_the_longest_sequence(builder: Builder, more: int) -> None:
    """A full step of two-token decodes: the engine's tables are wider than the longest sequence by some columns."""
    config = replace(CONFIG, max_num_batched_tokens=32, max_model_len=16 * 15)
    of = step_batch((2,) * 16, (16 * 15,) * 16, config)
    wide = torch.nn.functional.pad(of.block_table_tensor, (0, more))
    decode = builder(config).build_pair(replace(of, block_table_tensor=wide))[1].decode
    assert decode is not None
    assert decode.block_table[:, :15].tolist() == of.block_table_tensor.repeat_interleave(2, 0).tolist()
