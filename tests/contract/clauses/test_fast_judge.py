"""The proofs of the usual step say yes only where no clause objects, on random legal records and on planted faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from mla_contract.contract.clauses.clause import Clause, Level
from mla_contract.contract.clauses.fast_judge import NEEDS, structure_holds, values_hold
from mla_contract.contract.clauses.judge import all_clauses, judge
from mla_contract.contract.clauses.usual import PROVEN, PROVEN_IN_ORDER, prove_structure
from mla_contract.contract.clauses.usual_context import (
    PROVEN_CONTEXT,
    PROVEN_CONTEXT_VALUES,
    prove_context,
    prove_context_values,
)
from mla_contract.contract.clauses.usual_values import PROVEN_VALUES, prove_values
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.host import capturing
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


def _proven(made: StepContext) -> frozenset[str]:
    """Return the ids of the clauses that the proofs cover for a subject."""
    if made.is_indexer:
        return frozenset()
    prefill = made.prefill
    step = prove_structure(made.metadata, made.batch, made.facts, made.declaration, prefill)
    if step is None:
        return frozenset()
    found = PROVEN | (PROVEN_IN_ORDER if step.in_order else frozenset())
    values = prove_values(step, made.metadata, made.batch, made.facts)
    found |= PROVEN_VALUES if values else frozenset()
    if getattr(prefill, "chunked_context", None) is not None and prove_context(step, made.facts, prefill):
        found |= PROVEN_CONTEXT
        found |= PROVEN_CONTEXT_VALUES if values and prove_context_values(step, prefill) else frozenset()
    return found


def _assert_fast_agrees(made: StepContext) -> tuple[frozenset[str], bool]:
    """Assert that proofs and fast path say what the clauses say; return what is proven and whether all is fine."""
    proven = _proven(made)
    objecting = {code for code in proven if BY_ID[code].check(made)}
    assert not objecting, (objecting, made)
    for level, fast in ((Level.STRUCTURAL, structure_holds(made)), (Level.VALUES, values_hold(made))):
        outcome = judge(made, level)
        assert not (fast and outcome.violations), (outcome.violations, made)
        decided = not any(reason.startswith("undecidable") for reason in outcome.skipped.values())
        assert fast or outcome.violations or not decided, (level, made)
    return proven, outcome.violations == ()


@pytest.mark.parametrize("kind", ["dense", "sparse", "aiter", "indexer"])
def test_fast_judge_on_random_records_agrees_with_the_clauses(kind: str) -> None:
    """Fine by the fast path exactly when no clause reports; legal records are fine, and most are proven."""
    rng = np.random.default_rng(7)
    usual = whole = broken = 0
    for _ in range(ROUNDS):
        made = _random_subject(rng, kind)
        proven, _ = _assert_fast_agrees(made)
        usual += proven >= PROVEN
        whole += proven >= PROVEN_VALUES
        for _ in range(2):
            _plant(rng, made)
            made = replace(made)  # a subject keeps what it has computed
            broken += not _assert_fast_agrees(made)[1]
    assert broken > ROUNDS // 2
    assert kind == "indexer" or (usual > ROUNDS // 2 and whole > ROUNDS // 3)


@pytest.mark.parametrize("clause", all_clauses(), ids=lambda clause: clause.id)
def test_fast_judge_on_the_cases_agrees_with_the_clauses(clause: Clause) -> None:
    """The table's good and bad subjects are judged alike by both paths."""
    _assert_fast_agrees(CASES[clause.id].good())
    _assert_fast_agrees(CASES[clause.id].bad())


@pytest.mark.parametrize("code", list(NEEDS))
def test_clause_left_out_for_its_facts_reports_nothing(code: str) -> None:
    """Where the facts that a clause needs are not given, it reports nothing, whatever the subject."""
    checked = 0
    for case in CASES.values():
        for made in (case.good(), case.bad()):
            if not NEEDS[code](made.facts):
                assert BY_ID[code].check(made) == ()
                checked += 1
    assert checked


@pytest.mark.parametrize("queries", [(1, 1, 1), (2, 1, 3)], ids=["one token", "several"])
def test_proof_with_wide_slots_follows_them(queries: tuple[int, ...]) -> None:
    """Where blocks lie further apart than they are long, slots at that distance are proven, and others are not."""
    facts = replace(PLAIN, decode_threshold=3, slot_span=records.BLOCK + 3)
    made = subject("sparse", facts, queries, (9, 6, 5), 3)
    assert not values_hold(made)
    close = made.batch.slot_mapping
    made.batch.slot_mapping = close + close // records.BLOCK * 3
    made.metadata.slot_mapping = made.batch.slot_mapping
    assert _proven(made) >= PROVEN_VALUES
    assert values_hold(made)
    assert judge(made, Level.VALUES).violations == ()


@pytest.mark.parametrize("queries", [(1, 1, 1), (2, 1, 3)], ids=["one token", "several"])
def test_proof_with_blocks_of_odd_size_follows_them(queries: tuple[int, ...]) -> None:
    """Where the block size is no power of two, legal slots are proven, and one that is wrong by one is not."""
    made = subject("sparse", replace(PLAIN, decode_threshold=3, kernel_block_size=3), queries, (9, 6, 5), 3)
    assert _proven(made) >= PROVEN_VALUES
    assert values_hold(made)
    made.batch.slot_mapping[0] += 1
    assert not _proven(made) & PROVEN_VALUES
    assert not values_hold(made)


@pytest.mark.parametrize("queries", [(1, 1, 1), (2, 1, 2)], ids=["one token", "several"])
def test_proof_of_a_wide_table_looks_at_live_columns(queries: tuple[int, ...]) -> None:
    """Columns that no request reaches may hold anything; the last one that the longest reaches may not."""
    made = subject("sparse", PLAIN, queries, (9, 6, 5), 3)
    size = made.facts.kernel_block_size or 1
    dead = torch.full((3, 40), -1, dtype=torch.int32)
    made.batch.block_table_tensor = torch.cat([made.batch.block_table_tensor[:, : -(-9 // size)], dead], 1)
    assert _proven(made) >= PROVEN_VALUES
    assert values_hold(made)
    made.batch.block_table_tensor[0, (9 - 1) // size] = -1
    assert not _proven(made) & PROVEN_VALUES
    assert not values_hold(made)


@pytest.mark.parametrize("queries", [(1, 1, 1), (2, 1, 2)], ids=["one token", "several"])
def test_proof_with_a_block_of_two_requests_says_nothing(queries: tuple[int, ...]) -> None:
    """Slots that follow the table, but are the same for two requests, are reported and not proven."""
    made = subject("sparse", PLAIN, queries, (9, 6, 9), 3)
    assert _proven(made) >= PROVEN_VALUES
    made.batch.block_table_tensor[2] = made.batch.block_table_tensor[0]
    made.batch.slot_mapping[-queries[2] :] = made.batch.slot_mapping[: queries[0]]
    assert not _proven(made) & PROVEN_VALUES
    assert {found.code for found in judge(made, Level.VALUES).violations} == {"MLA221"}
    assert not values_hold(made)


@pytest.mark.parametrize("queries", [(1, 1, 1), (2, 1, 2)], ids=["one token", "several"])
def test_proof_with_another_total_says_nothing(queries: tuple[int, ...]) -> None:
    """Batch and metadata that agree on a number of tokens that is not the last offset are not proven."""
    made = subject("sparse", PLAIN, queries, (9, 6, 9), 3)
    assert _proven(made) >= PROVEN
    made.batch.num_actual_tokens = made.metadata.num_actual_tokens = sum(queries) - 1
    assert not _proven(made)


def test_proof_of_a_prefill_table_reads_what_is_not_the_batch_s() -> None:
    """The batch's own rows are known; a copy is read, and rows of another request, or fewer columns, are no proof."""
    made = subject("dense", PLAIN, (2, 2, 5, 3), (9, 6, 12, 11))
    table, first = made.batch.block_table_tensor, made.metadata.num_decodes
    assert made.prefill.block_table.data_ptr() == table[first:].data_ptr()
    assert "MLA264" in _proven(made)
    made.prefill.block_table = table[first:].clone()
    assert "MLA264" in _proven(made)
    for other in (table[first - 1 : -1], table[first:, :-1], table[first:].flip(0)):
        made.prefill.block_table = other
        assert "MLA264" not in _proven(made)


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


def test_proof_of_arrays_on_another_device_copies_them() -> None:
    """Device arrays are proven through copies, their faults are not, and nothing is copied during stream capture."""
    made = subject("dense", PLAIN, (2, 2, 5, 3), (9, 6, 12, 11))
    _move_away(made.batch)
    _move_away(made.metadata)
    assert _proven(made) >= PROVEN_VALUES | PROVEN_CONTEXT_VALUES
    with capturing():
        assert not _proven(made) & PROVEN_VALUES
    for array, code in ((made.batch.seq_lens, "MLA214"), (made.prefill.chunked_context.chunks[0].starts, "MLA322")):
        array += 1
        assert code not in _proven(made)
        array -= 1
    assert _proven(made) >= PROVEN_VALUES | PROVEN_CONTEXT_VALUES
