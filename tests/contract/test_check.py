"""The compiled check says what the clauses say one by one, on random legal records and on planted faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from mla_contract.contract.check import RecordCheck
from mla_contract.contract.clauses.clause import Clause, Level
from mla_contract.contract.clauses.registry import all_clauses, judge
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.facts import NO_FACTS
from mla_contract.contract.step.host import capturing
from mla_contract.contract.violation import Violation
from mla_contract.runtime.check import protocol_of
from mla_contract.testing.records import PlainBatch, PlainContextChunk, PlainPrefill
from tests.contract.clauses import records
from tests.contract.clauses.cases import ALL_DECODES, CASES, PLAIN, SHARED, subject

ROUNDS = 500
ON_HOST = {
    (PlainBatch, "query_start_loc_cpu"),
    (PlainBatch, "seq_lens_cpu_upper_bound"),
    (PlainPrefill, "query_lens_cpu"),
    (PlainContextChunk, "seq_lens"),
}
BY_ID = {clause.id: clause for clause in all_clauses()}


def _random_subject(rng: np.random.Generator, kind: str) -> StepContext:
    """Return a legal subject: decodes, then prefills with or without context, sometimes with padding or flags."""
    threshold = int(rng.integers(1, 4))
    decodes, prefills = int(rng.integers(0, 7)), int(rng.integers(0, 5))
    if rng.random() < 0.3:
        prefills = 0
    decodes = max(decodes, 1 - prefills)
    own = np.ones(decodes, np.int64) if rng.random() < 0.5 else rng.integers(1, threshold + 1, decodes)
    long = rng.integers(threshold + 1, threshold + 9, prefills)
    queries = np.concatenate([own, long])
    cached = rng.integers(1, 20, len(queries))
    if prefills and rng.random() < 0.3:
        cached[-1] = 0
    lens = queries + cached
    padding = int(rng.integers(1, 3)) if not prefills and rng.random() < 0.2 else 0
    facts = replace(
        PLAIN,
        decode_threshold=threshold,
        num_blocks=1000,
        context_rows=int(rng.choice([8, 32, 64])),
        max_num_seqs=None,
        indexer_rows=1000,
        capturing=bool(rng.random() < 0.1),
        short_extends_are_decodes=bool(rng.random() < 0.5),
    )
    made = subject(
        kind,
        facts,
        [*queries.tolist(), *[0] * padding],
        [*lens.tolist(), *[0] * padding],
        decodes + padding,
        declaration=SHARED if rng.random() < 0.3 else None,
        prefilling=[False] * decodes + [True] * prefills + [False] * padding if rng.random() < 0.2 else None,
    )
    if rng.random() < 0.1:
        made = replace(made, declaration=ALL_DECODES)
    return made


def _records(record: Any) -> Iterator[Any]:
    """Yield a record and the records inside it."""
    yield record
    for one in fields(record):
        value = getattr(record, one.name)
        for inner in value if isinstance(value, list) else [value]:
            if is_dataclass(inner):
                yield from _records(inner)


def _plant(rng: np.random.Generator, made: StepContext) -> None:
    """Change one number of one array, one length, or one scalar."""
    records = [*_records(made.batch), *_records(made.metadata)]
    record = records[int(rng.integers(len(records)))]
    name = str(rng.choice([one.name for one in fields(record)]))
    value = getattr(record, name)
    step = int(rng.choice([-7, -1, 1, 1, 5]))
    if isinstance(value, torch.Tensor) and value.numel():
        if rng.random() < 0.8:
            changed = value.clone()
            flat = changed.reshape(-1)
            at = int(rng.integers(flat.numel()))
            flat[at] = not flat[at] if value.dtype is torch.bool else flat[at] + step
            setattr(record, name, changed)
        else:
            setattr(record, name, value[:-1])
    elif isinstance(value, bool):
        setattr(record, name, not value)
    elif isinstance(value, int):
        setattr(record, name, max(value + step, 0))
    elif isinstance(value, slice):
        setattr(record, name, slice(value.start, value.stop + 1))
    elif isinstance(value, list) and value and isinstance(value[0], int):
        setattr(record, name, [*value[:-1], value[-1] + step])


def _found(made: StepContext, level: Level) -> set[Violation]:
    """Return what the compiled check says of a step, less the faults of its structure."""
    check = RecordCheck(protocol_of(made.metadata), made.facts, made.declaration, level)
    found = check(made.metadata, made.batch, trace=made.trace, path=made.path)
    return {violation for violation in found if violation.code in BY_ID}


def _assert_agree(made: StepContext) -> bool:
    """Assert that the compiled check says what the clauses say one by one; return whether all is fine."""
    for level in Level:
        judged = judge(made, level)
        assert _found(made, level) == set(judged.violations), made
    return judged.violations == ()


@pytest.mark.parametrize("kind", ["dense", "sparse", "aiter", "indexer"])
def test_check_of_random_records_agrees_with_the_clauses(kind: str) -> None:
    """Legal records are fine in both levels, and a planted fault is reported just as the clauses report it."""
    rng = np.random.default_rng(7)
    broken = 0
    for _ in range(ROUNDS):
        made = _random_subject(rng, kind)
        _assert_agree(made)
        for _ in range(2):
            _plant(rng, made)
            made = replace(made)  # a subject keeps what it has computed
            broken += not _assert_agree(made)
    assert broken > ROUNDS // 2


@pytest.mark.parametrize("clause", all_clauses(), ids=lambda clause: clause.id)
def test_check_of_the_cases_agrees_with_the_clauses(clause: Clause) -> None:
    """The table's good and bad subjects are judged alike, and the bad one is found by the compiled check as well."""
    assert _assert_agree(CASES[clause.id].good())
    assert not _assert_agree(CASES[clause.id].bad())
    assert clause.id in {violation.code for violation in _found(CASES[clause.id].bad(), Level.VALUES)}


@pytest.mark.parametrize(
    "clause", [one for one in all_clauses() if any(need.settled for need in one.needs)], ids=lambda clause: clause.id
)
def test_clause_left_out_for_its_settings_reports_nothing(clause: Clause) -> None:
    """Where configuration or declaration do not give what a clause needs, it is silent, whatever the subject."""
    checked = 0
    for case in CASES.values():
        for made in (case.good(), case.bad()):
            for facts in (made.facts, NO_FACTS, replace(made.facts, padding_may_prefill=True)):
                other = replace(made, facts=facts)
                if not all(need.is_met(other) for need in clause.needs if need.settled):
                    assert clause.check(other) == ()
                    checked += 1
    assert checked


@pytest.mark.parametrize("clause", all_clauses(), ids=lambda clause: clause.id)
def test_settled_need_looks_at_settings_alone(clause: Clause) -> None:
    """What is asked once for a builder must not depend on a step."""
    made = CASES[clause.id].good()
    alone = StepContext(facts=made.facts, declaration=made.declaration)
    for need in clause.needs:
        if need.settled:
            assert need.is_met(alone) == need.is_met(made), need.text


def test_check_of_steps_with_other_parts_asks_other_clauses() -> None:
    """One compiled check serves steps with and without prefills, one after the other."""
    both, plain = subject("dense"), subject("dense", queries=(1, 1), lens=(5, 6), decodes=2)
    check = RecordCheck(protocol_of(both.metadata), PLAIN, None, Level.STRUCTURAL)
    for made in (both, plain, both):
        assert check(made.metadata, made.batch) == ()
    both.prefill.max_query_len = 0
    assert {found.code for found in check(both.metadata, both.batch)} == {"MLA261"}
    assert check(plain.metadata, plain.batch) == ()


@pytest.mark.parametrize("queries", [(1, 1, 1), (2, 1, 3)], ids=["one token", "several"])
def test_check_of_wide_slots_follows_them(queries: tuple[int, ...]) -> None:
    """Where blocks lie further apart than they are long, slots at that distance are fine, and others are not."""
    facts = replace(PLAIN, decode_threshold=3, slot_span=records.BLOCK + 3)
    made = subject("sparse", facts, queries, (9, 6, 5), 3)
    assert "MLA225" in {found.code for found in _found(made, Level.VALUES)}
    close = made.batch.slot_mapping
    made.batch.slot_mapping = close + close // records.BLOCK * 3
    made.metadata.slot_mapping = made.batch.slot_mapping
    assert _found(made, Level.VALUES) == set()


@pytest.mark.parametrize("queries", [(1, 1, 1), (2, 1, 3)], ids=["one token", "several"])
def test_check_of_blocks_of_odd_size_follows_them(queries: tuple[int, ...]) -> None:
    """Where the block size is not a power of two, legal slots are fine, and one that is wrong by one is not."""
    made = subject("sparse", replace(PLAIN, decode_threshold=3, kernel_block_size=3), queries, (9, 6, 5), 3)
    assert _found(made, Level.VALUES) == set()
    made.batch.slot_mapping[0] += 1
    assert "MLA225" in {found.code for found in _found(made, Level.VALUES)}


@pytest.mark.parametrize("queries", [(1, 1, 1), (2, 1, 2)], ids=["one token", "several"])
def test_check_of_a_wide_table_looks_at_live_columns(queries: tuple[int, ...]) -> None:
    """Columns that no request reaches may hold anything; the last one that the longest reaches may not."""
    made = subject("sparse", PLAIN, queries, (9, 6, 5), 3)
    size = made.facts.kernel_block_size or 1
    dead = torch.full((3, 40), -1, dtype=torch.int32)
    made.batch.block_table_tensor = torch.cat([made.batch.block_table_tensor[:, : -(-9 // size)], dead], 1)
    assert _found(made, Level.VALUES) == set()
    made.batch.block_table_tensor[0, (9 - 1) // size] = -1
    assert "MLA223" in {found.code for found in _found(made, Level.VALUES)}


@pytest.mark.parametrize("queries", [(1, 1, 1), (2, 1, 2)], ids=["one token", "several"])
def test_check_of_a_block_of_two_requests_reports_the_slots(queries: tuple[int, ...]) -> None:
    """Slots that follow the table, but are the same for two requests, are reported."""
    made = subject("sparse", PLAIN, queries, (9, 6, 9), 3)
    assert _found(made, Level.VALUES) == set()
    made.batch.block_table_tensor[2] = made.batch.block_table_tensor[0]
    made.batch.slot_mapping[-queries[2] :] = made.batch.slot_mapping[: queries[0]]
    assert {found.code for found in _found(made, Level.VALUES)} == {"MLA221"}


@pytest.mark.parametrize("queries", [(1, 1, 1), (2, 1, 2)], ids=["one token", "several"])
def test_check_of_another_total_reports_it(queries: tuple[int, ...]) -> None:
    """Batch and metadata that agree on a number of tokens that is not the last offset are reported."""
    made = subject("sparse", PLAIN, queries, (9, 6, 9), 3)
    made.batch.num_actual_tokens = made.metadata.num_actual_tokens = sum(queries) - 1
    assert "MLA202" in {found.code for found in _found(replace(made), Level.STRUCTURAL)}


def test_check_of_a_prefill_table_that_is_not_the_batch_s_compares_rows() -> None:
    """A copy of the batch's rows is fine; rows of another request are not."""
    made = subject("dense", PLAIN, (2, 2, 5, 3), (9, 6, 12, 11))
    table, first = made.batch.block_table_tensor, made.metadata.num_decodes
    made.prefill.block_table = table[first:].clone()
    assert _found(made, Level.VALUES) == set()
    for other in (table[first - 1 : -1], table[first:].flip(0)):
        made.prefill.block_table = other
        assert "MLA264" in {found.code for found in _found(made, Level.VALUES)}


class _Elsewhere(torch.Tensor):
    """A tensor as if of another device: its elements are read through a copy on the host."""

    is_cpu = False

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        """Return the copy."""
        return self.as_subclass(torch.Tensor)

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse, as torch does for arrays of another device."""
        raise TypeError("not on the host")


def _move_away(record: Any) -> None:
    """Move the arrays of a record and of the records inside it, less those that the contract keeps on the host."""
    for one in _records(record):
        for name in [field.name for field in fields(one)]:
            value = getattr(one, name)
            if isinstance(value, torch.Tensor) and (type(one), name) not in ON_HOST:
                setattr(one, name, value.as_subclass(_Elsewhere))


def test_check_of_arrays_on_another_device_copies_them() -> None:
    """Device arrays are judged through copies, their faults are found, and nothing is copied during stream capture."""
    made = subject("dense", PLAIN, (2, 2, 5, 3), (9, 6, 12, 11))
    _move_away(made.batch)
    _move_away(made.metadata)
    assert judge(made, Level.VALUES).violations == ()
    assert {"MLA211", "MLA225", "MLA264", "MLA321", "MLA324"} <= set(judge(made, Level.VALUES).held)
    for array, code in ((made.batch.seq_lens, "MLA214"), (made.prefill.chunked_context.chunks[0].starts, "MLA321")):
        array += 1
        assert code in {found.code for found in _found(made, Level.VALUES)}
        with capturing():
            assert _found(made, Level.VALUES) == set()
        array -= 1
    assert _found(made, Level.VALUES) == set()
