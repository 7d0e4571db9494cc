"""Judging a subject: loads every clause module, and runs the clauses that apply."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType

from mla_contract.contract.clauses.clause import CLAUSES, Clause, Level
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.host import is_capturing
from mla_contract.contract.violation import Violation

FAMILIES = (
    "batch",
    "lengths",
    "slots",
    "split",
    "metadata",
    "routing",
    "prefill",
    "context",
    "context_values",
    "chunk_records",
    "gather",
    "decode",
    "indexer",
    "indexer_rows",
    "indexer_chunk",
    "chunk_values",
    "paged",
    "work",
    "work_buffers",
    "workspace",
    "slices",
)
"""The modules that state clauses."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the clauses said of one subject.

    Attributes:
        violations: Every breach.
        held: Ids of the clauses that were decided and hold.
        skipped: Why each other clause was not decided, by id.
    """

    violations: tuple[Violation, ...]
    held: tuple[str, ...]
    skipped: MappingProxyType[str, str]


@cache
def all_clauses() -> tuple[Clause, ...]:
    """Return every clause, in the order of its id."""
    for family in FAMILIES:
        import_module(f"mla_contract.contract.clauses.{family}")
    return tuple(CLAUSES[code] for code in sorted(CLAUSES))


@cache
def clauses_of(level: Level) -> tuple[Clause, ...]:
    """Return the clauses of one level."""
    return tuple(clause for clause in all_clauses() if clause.level is level)


def judge(subject: StepContext, level: Level = Level.STRUCTURAL, clauses: Iterable[Clause] | None = None) -> Outcome:
    """Run clauses over a subject; never raises.

    Args:
        subject: What to look at.
        level: ``STRUCTURAL`` alone, or ``VALUES`` for both levels.
        clauses: Which clauses; all by default.

    Sync: reads device memory in the values level, and none during stream capture
    """
    violations: list[Violation] = []
    held: list[str] = []
    skipped: dict[str, str] = {}
    captured = level is Level.VALUES and is_capturing()
    for clause in all_clauses() if clauses is None else clauses:
        if clause.level is Level.VALUES and (level is not Level.VALUES or captured):
            skipped[clause.id] = "stream capture" if captured else "values level is off"
            continue
        found, reason = clause.outcome(subject)
        if reason is not None:
            skipped[clause.id] = reason
        elif found:
            violations.extend(found)
        else:
            held.append(clause.id)
    return Outcome(tuple(violations), tuple(held), MappingProxyType(skipped))
