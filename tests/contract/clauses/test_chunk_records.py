"""What chunk records and parallel lists say besides their lengths, in the shapes that the table of cases leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mla_contract.contract.clauses.registry import all_clauses as registry
from mla_contract.contract.step.context import StepContext
from mla_contract.testing.records import PlainFieldContext
from tests.contract.clauses import records
from tests.contract.clauses.cases import CONTEXT, DCP, DECODES, PLAIN, Change, poke, put, subject
from tests.contract.clauses.records import ints

BY_ID = {clause.id: clause for clause in registry()}


class FieldLens(PlainFieldContext):
    """The shape of 0.27, with context lengths on the device."""

    context_lens = ints([7, 8, 0])


def _lists() -> StepContext:
    """Return parallel lists with context lengths on the device."""
    made = subject("dense")
    made.metadata.prefill.chunked_context = FieldLens(**vars(records.field_context(made.batch, DECODES, 4)))
    return replace(made)


def _padded_lists() -> StepContext:
    """Return parallel lists of context parallelism: two chunks over three prefills."""
    made = subject("dense", DCP)
    context = records.field_context(made.batch, DECODES, 4)
    context.padded_local_chunk_seq_lens = [[2, 2, 0], [2, 2, 0]]
    context.padded_local_cu_seq_lens = ints([[0, 2, 4, 4], [0, 2, 4, 4]])
    made.metadata.prefill.chunked_context = context
    return replace(made)


def _split(shared: bool) -> Callable[[], StepContext]:
    return lambda: subject("dense", DCP if shared else PLAIN, split=4)


@pytest.mark.parametrize(
    ("code", "make", "change"),
    [
        ("MLA313", _split(False), put(f"{CONTEXT}.chunks.0.is_continuation", True)),
        ("MLA314", _split(False), put(f"{CONTEXT}.chunks.0.local_starts", [0])),
        ("MLA314", _split(True), put(f"{CONTEXT}.chunks.0.local_starts", None)),
        ("MLA324", _lists, put(f"{CONTEXT}.context_lens", ints([7, 9, 0]))),
        ("MLA324", _split(False), put(f"{CONTEXT}.context_lens", lambda old: old[:-1])),
        ("MLA325", _padded_lists, poke(f"{CONTEXT}.padded_local_cu_seq_lens", (1, 2), 5)),
        ("MLA325", _split(True), poke(f"{CONTEXT}.chunks.0.padded_local_cu_seq_lens", 1, 1)),
    ],
    ids=["flag set", "starts without DCP", "no starts", "lists", "a length less", "sums of lists", "sums"],
)
def test_chunk_record_with_changed_field_is_reported(
    code: str, make: Callable[[], StepContext], change: Change
) -> None:
    """The changed record breaks the clause, and the unchanged one holds."""
    assert BY_ID[code].outcome(make()) == ((), None)
    bad = make()
    bad = replace(change(bad) or bad)
    found, reason = BY_ID[code].outcome(bad)
    assert reason is None and len(found) == 1


def test_local_starts_of_unknown_ranks_are_not_decided() -> None:
    """A record of context parallelism without the fact of it is left alone."""
    made = subject("dense", DCP, split=4)
    unknown = StepContext(metadata=made.metadata, batch=made.batch)
    assert BY_ID["MLA314"].outcome(unknown)[1] is not None
