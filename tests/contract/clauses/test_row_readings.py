"""Decode rows that may be read in two ways: both are accepted, and what neither explains is still reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.plan import PlanConfig
from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.clauses.registry import judge
from mla_contract.contract.step.context import StepContext
from mla_contract.testing.lowering import LoweredKind, Setup, build
from mla_contract.testing.records import PlainIndexerDecode
from tests.contract.clauses.cases import DCP, PLAIN, poke, put, subject
from tests.contract.clauses.records import ints, local_len
from tests.lab.decode_records import PlainPagedDecode


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


def _flat(padded: Padded, lens: Sequence[int], owners: Sequence[int], *, shared: bool = False) -> StepContext:
    """Return the padded batch with one-dimensional decode rows."""
    facts = DCP if shared else PLAIN
    made = subject("indexer", facts, padded.queries, padded.lens, len(padded.queries))
    local = [local_len(facts, length) for length in lens] if shared else lens
    made.metadata.decode = PlainIndexerDecode(
        block_table=made.batch.block_table_tensor[torch.tensor(owners)],
        seq_lens=ints(local),
        decode_lens=torch.diff(made.batch.query_start_loc) if lens == padded.lens else torch.ones_like(ints(lens)),
        requires_padding=False,
        schedule_metadata=torch.zeros(3, 2, dtype=torch.int32),
        global_seq_lens=ints(lens) if shared else None,
    )
    return replace(made)


def _codes(made: StepContext) -> set[str]:
    return {violation.code for violation in judge(replace(made), Level.VALUES).violations}


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
    padded: Padded, change: Callable[[StepContext], StepContext | None], code: str, shared: bool
) -> None:
    """A row that is right by neither reading is reported, whichever reading the record follows."""
    for lens, owners in ((padded.lens, range(len(padded.lens))), (padded.by_token, padded.owners)):
        made = _flat(padded, lens, owners, shared=shared)
        change(made)
        assert code in _codes(made)


def _paged(padded: Padded, lens: Sequence[int], *, shared: bool = False) -> StepContext:
    """Return the padded batch with a dense decode record whose rows have these lengths."""
    facts = DCP if shared else PLAIN
    made = subject("dense", facts, padded.queries, padded.lens, len(padded.queries))
    old, page = made.metadata.decode, facts.kernel_block_size or 1
    local = [local_len(facts, length) for length in lens] if shared else lens
    pages = [0, *accumulate(-(-length // page) for length in lens)]
    made.metadata.decode = PlainPagedDecode(
        block_table=old.block_table,
        seq_lens=ints(local),
        dcp_tot_seq_lens=ints(lens) if shared else None,
        paged_kv_indptr=None if shared else ints(pages),
        paged_kv_last_page_len=None if shared else ints([(length - 1) % page + 1 for length in lens]),
    )
    return replace(made)


@pytest.mark.parametrize("shared", [False, True], ids=["pages", "dcp"])
def test_dense_rows_by_request_or_by_token_are_accepted(shared: bool) -> None:
    """The dense decode record of a padded batch may count requests or tokens too."""
    padded = PADDED[1]
    for lens, owners in ((padded.lens, range(4)), (padded.by_token, padded.owners)):
        made = _paged(padded, lens, shared=shared)
        made.metadata.decode.block_table = made.batch.block_table_tensor[torch.tensor(owners)]
        assert _codes(made) == set()


@pytest.mark.parametrize(
    ("field", "code", "shared"),
    [
        ("seq_lens", "MLA333", False),
        ("paged_kv_indptr", "MLA384", False),
        ("paged_kv_last_page_len", "MLA384", False),
        ("dcp_tot_seq_lens", "MLA334", True),
    ],
)
def test_dense_rows_of_neither_reading_are_reported(field: str, code: str, shared: bool) -> None:
    """A wrong element is reported in either reading, at its field."""
    for lens in (PADDED[1].lens, PADDED[1].by_token):
        made = _paged(PADDED[1], lens, shared=shared)
        poke(f"metadata.decode.{field}", 1, 31)(made)
        found = [one for one in judge(replace(made), Level.VALUES).violations if one.code == code]
        assert [one.path.rpartition(".")[2] for one in found] == [field]


def test_states_are_dealt_out_by_runs_of_states() -> None:
    """Two ranks, runs of 4 tokens, 2 tokens a state: rank 1 has 2 of the 6 states of 13 tokens."""
    facts = replace(DCP, dcp_interleave=4, compress_ratio=2)
    made = subject("indexer", facts, (1, 3), (13, 13), 1)
    (chunk,) = made.metadata.prefill.chunks
    assert chunk.local_cu_seq_lens.tolist() == [0, 2]
    assert (chunk.cu_seqlen_ke - chunk.cu_seqlen_ks).tolist() == [2, 2, 2]
    assert made.metadata.decode.seq_lens.tolist() == [[2]]
    assert made.metadata.decode.global_seq_lens.tolist() == [[13]]
    assert _codes(made) == set()
    chunk.local_cu_seq_lens = ints([0, 4])
    made.metadata.decode.global_seq_lens = ints([[6]])
    assert _codes(made) == {"MLA350", "MLA374"}


def test_padding_that_starts_prefills_is_reported_where_the_release_counts_it_as_decodes() -> None:
    """Up to 0.30 a uniform split whose short extends are prefills leaves padding to them; elsewhere it is wrong."""
    facts = replace(PLAIN, decode_threshold=4, uniform_decodes=True, short_extends_are_decodes=False)
    shape: dict[str, Any] = {"queries": (4, 4, 0), "lens": (9, 9, 0), "decodes": 2, "prefilling": (False,) * 3}
    assert "MLA236" in _codes(subject("sparse", facts, **shape))
    assert "MLA236" not in _codes(subject("sparse", replace(facts, padding_may_prefill=True), **shape))
    changed = replace(facts, padding_may_prefill=True, short_extends_are_decodes=True)
    assert "MLA236" in _codes(subject("sparse", changed, **shape))


@pytest.mark.parametrize(
    ("lens", "by_token", "sound"),
    [
        ((3, 3, 3), False, True),
        ((3, 3, 0), False, True),
        ((3, 3, 2), False, False),
        ((0, 3, 3), False, False),
        ((1,) * 9, True, True),
        ((1,) * 6 + (0,) * 3, True, True),
        ((1,) * 6 + (0, 2, 0), True, False),
        ((1,) * 5 + (0,) * 4, True, False),
    ],
)
def test_lengths_of_uniformly_padded_rows(lens: tuple[int, ...], by_token: bool, sound: bool) -> None:
    """A padding request with a query keeps its tokens or has none; another length, or none on a live row, is wrong."""
    made = subject("indexer", replace(PLAIN, decode_threshold=3), (3, 3, 3), (9, 6, 0), 3)
    decode = made.metadata.decode
    if by_token:
        decode.block_table = made.batch.block_table_tensor[torch.tensor((0, 0, 0, 1, 1, 1, 2, 2, 2))]
        decode.seq_lens = ints((7, 8, 9, 4, 5, 6, 0, 0, 0))
    decode.decode_lens = ints(lens)
    assert _codes(made) == (set() if sound else {"MLA353"})


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
    """Local lengths in place of global ones are not an alignment."""
    made = subject("indexer", replace(DCP, decode_threshold=3), **RAGGED)
    _align_left(made)
    made.metadata.decode.global_seq_lens = made.metadata.decode.seq_lens
    assert _codes(made) == {"MLA350"}


def _align_left(made: StepContext) -> None:
    """Put left-aligned lengths into the decode part of ``RAGGED``."""
    facts, decode = made.facts, made.metadata.decode
    shared = facts.dcp_size > 1
    decode.seq_lens = ints([[local_len(facts, length) for length in row] for row in LEFT] if shared else LEFT)
    decode.global_seq_lens = ints(LEFT) if shared else None


def test_global_lengths_of_requests_stand_where_each_has_one_token() -> None:
    """Two requests in a graph of three tokens have two lengths over all ranks; with a longer query that is too few."""

    def judged(queries: list[int], tokens: int) -> set[str]:
        config = PlanConfig(
            block_size=16, decode_threshold=2, indexer_states=64, flatten_decodes=True, parallel=ContextParallel(2)
        )
        setup = Setup(kind=LoweredKind.INDEXER, config=config)
        table = np.array([[1], [2]], np.int32)
        shape = BatchShape.of(queries, [9, 6], num_actual_tokens=tokens, block_table=table)
        batch, metadata = build(shape, setup)
        metadata.decode.global_seq_lens = ints([9, 6])
        found = judge(StepContext(metadata=metadata, batch=batch, facts=setup.facts()), Level.VALUES)
        return {violation.code for violation in found.violations}

    assert judged([1, 1], 3) == set()
    assert "MLA352" in judged([2, 1], 3)


def test_last_token_of_a_cut_prompt_is_no_plain_decode() -> None:
    """A micro-batch may end one token into a prompt; a request of one token that is not flagged is a late decode."""

    def judged(flag: bool) -> set[str]:
        made = subject("dense", replace(PLAIN, next_n=1), (30, 1), (60, 70), 0)
        made.batch.is_prefilling = torch.tensor([True, flag])
        return _codes(made) & {"MLA231"}

    assert judged(True) == set()
    assert judged(False) == {"MLA231"}
