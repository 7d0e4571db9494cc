"""The corpus: every table is there, and its numbers agree with the shared planner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_chunks import plan_context_chunks
from mla_contract.adapters.context_packed import PackedContextPlan
from mla_contract.adapters.context_parallel import ContextParallel, local_lens_of_ranks
from mla_contract.adapters.context_rule import ContextRule
from mla_contract.adapters.indexer_chunks import IndexerRule
from mla_contract.adapters.split import SplitRule, split_batch
from mla_contract.adapters.tokens import map_tokens, token_slots
from mla_contract.testing.corpus import (
    SECTIONS,
    batch_specs,
    conformance_batches,
    corpus,
    corpus_section,
    derived_block_table,
    in_order,
)
from tests.adapters.offsets import split_indexer_chunks


def counts(lens: Any, rule: SplitRule, **options: Any) -> list[int]:
    """Return the split's four counts."""
    split = split_batch(BatchShape.of(lens, np.asarray(lens) + 1, **options), rule)
    return [split.num_decodes, split.num_prefills, split.num_decode_tokens, split.num_prefill_tokens]


def test_corpus_has_every_section() -> None:
    """The file holds the tables that the module names, and nothing else."""
    assert tuple(corpus()) == SECTIONS
    assert len(corpus_section("batches")) == 55
    assert all(row["sources"] for row in corpus_section("batches").values())


def test_corpus_section_of_unknown_name_lists_the_names() -> None:
    """A wrong name is answered with the right ones."""
    with pytest.raises(KeyError, match="batches"):
        corpus_section("batch")


def test_batch_specs_are_the_batches_with_lengths() -> None:
    """One batch of 55 has no constant lengths in its test, and is not a spec."""
    assert len(batch_specs()) == 54
    assert all(spec.shape().num_reqs == len(spec.query_lens) for spec in batch_specs().values())


def test_conformance_batches_are_padded_and_ordered() -> None:
    """Padding requests stand behind the live ones, and ordering keeps them there."""
    padded = conformance_batches()["ubatch_cudagraph_padding_padded"]
    assert padded.query_lens == (1,) * 6 + (0, 0)
    mixed = in_order(conformance_batches()["ubatch_split_request"], 1)
    assert mixed.query_lens == (1, 1, 1, 1, 10)


@pytest.mark.parametrize("name", corpus_section("splits"))
def test_split_of_asserted_case_is_the_planners(name: str) -> None:
    """What vLLM's tests assert of a split holds of ours."""
    row = corpus_section("splits")[name]
    rule = SplitRule(row["threshold"], row["uniform"], row["short_extends_decode"])
    options = {"num_actual_tokens": row["num_tokens"], "is_prefilling": row["is_prefilling"]}
    assert counts(row["query_lens"], rule, **options) == row["counts"]


@pytest.mark.parametrize("name", corpus_section("derived_splits"))
def test_split_of_every_batch_is_the_planners(name: str) -> None:
    """What vLLM 0.33 computes for each batch, threshold and uniformity is what we compute."""
    lens = corpus_section("batches")[name]["query_lens"]
    for key, wanted in corpus_section("derived_splits")[name].items():
        assert counts(lens, SplitRule(int(key.removesuffix("u")), key.endswith("u"))) == wanted


@pytest.mark.parametrize("name", corpus_section("contexts"))
def test_context_of_every_case_is_the_planners(name: str) -> None:
    """What vLLM 0.33 plans for each context is what we plan."""
    row = corpus_section("contexts")[name]
    sharing = ContextParallel(row["dcp_size"], 0, row["dcp_interleave"])
    start_loc = np.concatenate([[0], np.cumsum(row["query_lens"])])
    rule = ContextRule(row["workspace_rows"], row["block_size"], sharing)
    if row["workspace_rows"] < rule.alignment:
        pytest.skip("below one aligned piece")
    plan = plan_context_chunks(np.asarray(row["context_lens"]), start_loc, rule)
    chunks = plan.chunks if isinstance(plan, PackedContextPlan) else ()
    got = [
        [[chunk.request_slice.start, chunk.request_slice.stop], chunk.starts.tolist(), chunk.seq_lens.tolist()]
        for chunk in chunks
    ]
    assert got == row["chunks"]


@pytest.mark.parametrize("index", range(len(corpus_section("indexer_chunks"))))
def test_indexer_chunks_of_every_case_are_the_planners(index: int) -> None:
    """What vLLM's tests assert of indexer chunks holds of ours."""
    row = corpus_section("indexer_chunks")[index]
    rule = IndexerRule(row["buffer_states"], row["logits_bytes"])
    states, lens = (np.asarray(row[name], np.int32) for name in ("states", "query_lens"))
    assert [list(chunk) for chunk in split_indexer_chunks(states, lens, rule)] == row["chunks"]


def test_local_lens_of_every_case_are_the_planners() -> None:
    """What vLLM computes for each rank is what we compute."""
    for row in corpus_section("local_lens"):
        sharing = ContextParallel(row["dcp_size"], 0, row["dcp_interleave"])
        assert local_lens_of_ranks(row["seq_lens"], sharing).tolist() == row["lens_of_ranks"]


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_derived_table_gives_every_token_its_own_slot(block_size: int) -> None:
    """Requests own disjoint blocks, padding the null block; slots follow from the table and are distinct."""
    for spec in conformance_batches().values():
        table = derived_block_table(spec.seq_lens, block_size)
        shape = spec.shape()
        slots = token_slots(table, map_tokens(shape), block_size, ContextParallel())
        live, padding = slots[: shape.num_live_tokens], slots[shape.num_live_tokens :]
        assert len(set(live.tolist())) == len(live) and (live >= 0).all()
        assert (padding == -1).all()
        assert (table[np.asarray(spec.seq_lens) == 0] == 0).all()
        assert (table[np.asarray(spec.seq_lens) > 0] > 0).all()
