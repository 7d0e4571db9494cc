"""Batches that vLLM's runners make and that look odd: each is silent in both levels, beside one that is a fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mla_contract.contract.check import RecordCheck
from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.step.context import StepContext
from mla_contract.runtime.check import protocol_of
from tests.contract.clauses.cases import PLAIN, subject

Change = Callable[[StepContext], Any]
NO_DRAFTS = replace(PLAIN, decode_threshold=1, next_n=1)
NO_MAXIMUM = replace(NO_DRAFTS, max_num_seqs=16, buffer_rows=64)


def codes_of(made: StepContext) -> set[str]:
    """Return the codes of whatever a compiled check reports in either level."""
    check = RecordCheck(protocol_of(made.metadata), made.facts, made.declaration, Level.VALUES)
    return {found.code for found in check(made.metadata, made.batch)}


def pad_tokens(made: StepContext, tokens: int) -> StepContext:
    """Return a step whose tokens are raised to a captured size behind the last offset, as runners do it."""
    batch, record = made.batch, made.metadata
    missing = tokens - batch.num_actual_tokens
    batch.slot_mapping = torch.cat([batch.slot_mapping, torch.full((missing,), -1)])
    if batch.positions is not None:
        batch.positions = torch.cat([batch.positions, torch.zeros(missing, dtype=torch.int64)])
    if not record.num_prefills:
        record.num_decode_tokens = tokens
    batch.num_actual_tokens = record.num_actual_tokens = tokens
    record.slot_mapping = batch.slot_mapping
    return replace(made)


def one_live() -> StepContext:
    """Return one live decode in a graph of two: requests and tokens are raised, the last offset repeats."""
    return pad_tokens(subject("dense", NO_DRAFTS, (1, 0), (9, 0), 2), 2)


def three_live() -> StepContext:
    """Return three live decodes in a graph of four."""
    return pad_tokens(subject("sparse", NO_DRAFTS, (1, 1, 1, 0), (9, 6, 5, 0), 4), 4)


def mixed_graph() -> StepContext:
    """Return decodes and a prefill in a full graph of sixteen tokens."""
    return pad_tokens(subject("sparse", NO_MAXIMUM, (1, 1, 5), (9, 6, 12), 2), 16)


def fresh_before_chunk() -> StepContext:
    """Return a fresh prompt before a longer chunk of one that was begun, as the V2 runner sorts them."""
    return subject("dense", NO_DRAFTS, (1, 5, 7), (9, 5, 12), 1)


def short_prompt_among_decodes() -> StepContext:
    """Return a prompt of one token among decodes, as the V2 runner sorts them."""
    return subject("dense", replace(NO_DRAFTS, short_extends_are_decodes=True), (1, 1, 1, 5), (9, 1, 6, 12), 3)


def uniform_split_of_unequal_decodes() -> StepContext:
    """Return decodes of unequal length that a uniform split cuts where the length changes."""
    facts = replace(PLAIN, decode_threshold=2, uniform_decodes=True)
    return subject("dense", facts, (1, 2), (9, 6), 1)


def draft_step() -> StepContext:
    """Return the step of a draft model, whose longest sequence is what its last step may reach."""
    made = subject("dense", PLAIN, (1, 1), (9, 6), 2)
    made.batch.max_seq_len = made.metadata.max_seq_len = 12
    return replace(made)


def flags_of_live_requests() -> StepContext:
    """Return flags for three live requests of four."""
    made = pad_tokens(subject("dense", NO_DRAFTS, (1, 1, 1, 0), (9, 6, 5, 0), 4), 4)
    made.batch.is_prefilling = torch.zeros(3, dtype=torch.bool)
    return replace(made)


def localised_maximum() -> StepContext:
    """Return a record whose longest sequence is this rank's part, rounded up, under context parallelism."""
    facts = replace(NO_DRAFTS, dcp_size=2, dcp_rank=0, dcp_interleave=2)
    made = subject("dense", facts, (1, 1), (9, 6), 2)
    made.metadata.max_seq_len = facts.padded_rows(9)
    return replace(made)


def lens_that_differ() -> StepContext:
    """Return a verified batch whose device has other query lengths than the host bounds, with an equal total."""
    made = subject(
        "dense",
        replace(PLAIN, decode_threshold=3, next_n=3, buffer_rows=64, device_lens_differ=True),
        (2, 2),
        (9, 8),
        2,
    )
    return replace(made)


LEGAL: dict[str, tuple[Callable[[], StepContext], Change, str]] = {
    "one live decode in a graph of two": (one_live, lambda of: setattr(of.batch, "num_actual_tokens", 0), "MLA202"),
    "three live decodes in a graph of four": (
        three_live,
        lambda of: setattr(of.metadata, "num_decode_tokens", 2),
        "MLA233",
    ),
    "mixed batch in a full graph": (mixed_graph, lambda of: setattr(of.metadata, "num_decode_tokens", 7), "MLA233"),
    "fresh prompt before a chunk": (fresh_before_chunk, lambda of: setattr(of.metadata, "num_prefills", 1), "MLA232"),
    "prompt of one token among decodes": (
        short_prompt_among_decodes,
        lambda of: setattr(of.metadata, "num_decodes", 4),
        "MLA234",
    ),
    "uniform split of unequal decodes": (
        uniform_split_of_unequal_decodes,
        lambda of: setattr(of.metadata, "num_decodes", 2),
        "MLA234",
    ),
    "draft step": (draft_step, lambda of: setattr(of.batch, "max_seq_len", 5), "MLA206"),
    "flags of live requests": (
        flags_of_live_requests,
        lambda of: setattr(of.batch, "is_prefilling", torch.zeros(2, dtype=torch.bool)),
        "MLA210",
    ),
    "localised maximum": (localised_maximum, lambda of: setattr(of.metadata, "max_seq_len", 3), "MLA244"),
    "lengths that differ": (lens_that_differ, lambda of: of.batch.query_start_loc.add_(1), "MLA211"),
}


@pytest.mark.parametrize("name", LEGAL)
def test_batch_of_a_runner_is_silent_and_a_fault_in_it_is_not(name: str) -> None:
    """What a runner makes breaks no clause in either level; a fault in the same batch is still reported."""
    make, change, code = LEGAL[name]
    assert codes_of(make()) == set()
    bad = make()
    change(bad)
    assert code in codes_of(replace(bad))
