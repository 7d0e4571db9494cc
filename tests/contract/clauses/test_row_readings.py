"""Decode rows that may be read in two ways: both are accepted, and what neither explains is still reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from mla_contract.contract.clauses.clause import Tier
from mla_contract.contract.clauses.judge import judge
from mla_contract.contract.clauses.subject import Subject
from tests.contract.clauses import records
from tests.contract.clauses.cases import DCP, PLAIN, poke, put, subject
from tests.contract.clauses.records import ints


@dataclass(frozen=True)
class Padded:
    """A padded batch with as many decode tokens as decodes, and its lengths by token."""

    queries: tuple[int, ...]
    lens: tuple[int, ...]
    by_token: tuple[int, ...]
    owners: tuple[int, ...]


PADDED = (Padded((2, 0), (9, 0), (8, 9), (0, 0)), Padded((2, 2, 0, 0), (9, 6, 0, 0), (8, 9, 5, 6), (0, 0, 1, 1)))
RAGGED: dict[str, Any] = {"queries": (3, 1, 2), "lens": (9, 6, 5), "decodes": 3}
LEFT = [[7, 8, 9], [6, 0, 0], [4, 5, 0]]
"""Keys of the tokens of ``RAGGED``, each row from its first token on."""


def _flat(padded: Padded, lens: Sequence[int], owners: Sequence[int], *, shared: bool = False) -> Subject:
    """Return the padded batch with one-dimensional decode rows."""
    facts = DCP if shared else PLAIN
    made = subject("indexer", facts, padded.queries, padded.lens, len(padded.queries))
    local = [facts.local_len(length) for length in lens] if shared else lens
    made.metadata.decode = records.IndexerDecode(
        block_table=made.batch.block_table_tensor[torch.tensor(owners)],
        seq_lens=ints(local),
        decode_lens=torch.diff(made.batch.query_start_loc) if lens == padded.lens else torch.ones_like(ints(lens)),
        requires_padding=False,
        schedule_metadata=torch.zeros(3, 2, dtype=torch.int32),
        global_seq_lens=ints(lens) if shared else None,
    )
    return made


def _codes(made: Subject) -> set[str]:
    return {violation.code for violation in judge(made, Tier.VALUES).violations}


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "dcp"])
@pytest.mark.parametrize("padded", PADDED, ids=lambda one: str(one.queries))
def test_padded_rows_by_request_or_by_token_are_accepted(padded: Padded, shared: bool) -> None:
    """Where decodes and decode tokens are equal by padding, rows of requests and rows of tokens are both legal."""
    assert _codes(_flat(padded, padded.lens, range(len(padded.lens)), shared=shared)) == set()
    assert _codes(_flat(padded, padded.by_token, padded.owners, shared=shared)) == set()


@pytest.mark.parametrize(
    ("change", "code", "shared"),
    [
        (put("metadata.decode.seq_lens", lambda old: old + 1), "MLA348", False),
        (poke("metadata.decode.seq_lens", 1, -1), "MLA348", False),
        (put("metadata.decode.block_table", lambda old: old + 1), "MLA335", False),
        (put("metadata.decode.global_seq_lens", lambda old: old + 1), "MLA350", True),
        (poke("metadata.decode.decode_lens", 0, 3), "MLA353", False),
    ],
    ids=["off by one", "negative", "another table", "global off by one", "too long"],
)
@pytest.mark.parametrize("padded", PADDED, ids=lambda one: str(one.queries))
def test_padded_rows_of_neither_reading_are_reported(
    padded: Padded, change: Callable[[Subject], Subject | None], code: str, shared: bool
) -> None:
    """A row that is right by neither reading is reported, whichever reading the record follows."""
    for lens, owners in ((padded.lens, range(len(padded.lens))), (padded.by_token, padded.owners)):
        made = _flat(padded, lens, owners, shared=shared)
        change(made)
        assert code in _codes(made)


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "dcp"])
def test_native_rows_aligned_left_or_right_are_accepted(shared: bool) -> None:
    """Unequal queries may begin at the first column or end at the last."""
    made = subject("indexer", replace(DCP if shared else PLAIN, decode_threshold=3), **RAGGED)
    assert _codes(made) == set()
    _align_left(made)
    assert _codes(made) == set()


@pytest.mark.parametrize(("place", "value"), [((1, 1), 7), ((2, 2), -1), ((0, 0), 8), ((2, 0), 3)])
def test_native_rows_aligned_left_with_wrong_element_are_reported(place: tuple[int, int], value: int) -> None:
    """A left-aligned row with one wrong element, also behind its last token, is reported."""
    made = subject("indexer", replace(PLAIN, decode_threshold=3), **RAGGED)
    _align_left(made)
    poke("metadata.decode.seq_lens", place, value)(made)
    assert _codes(made) == {"MLA348"}


def test_native_global_rows_aligned_left_with_local_lengths_are_reported() -> None:
    """Local lengths in place of global ones are no alignment."""
    made = subject("indexer", replace(DCP, decode_threshold=3), **RAGGED)
    _align_left(made)
    made.metadata.decode.global_seq_lens = made.metadata.decode.seq_lens
    assert _codes(made) == {"MLA350"}


def _align_left(made: Subject) -> None:
    """Put left-aligned lengths into the decode part of ``RAGGED``."""
    facts, decode = made.facts, made.metadata.decode
    shared = facts.dcp_size > 1
    decode.seq_lens = ints([[facts.local_len(length) for length in row] for row in LEFT] if shared else LEFT)
    decode.global_seq_lens = ints(LEFT) if shared else None
