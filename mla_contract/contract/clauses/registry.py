"""Every clause, loaded on first use, and the judgement of one step by all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from mla_contract.contract import clauses as room
from mla_contract.contract.clauses.clause import CLAUSES, Clause, Level
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.host import is_capturing
from mla_contract.contract.violation import Violation


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the clauses said of one step.

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
    """Return every clause of the modules in this room, in the order of its id."""
    for module in iter_modules(room.__path__):
        import_module(f"{room.__name__}.{module.name}")
    return tuple(CLAUSES[code] for code in sorted(CLAUSES))


def families() -> tuple[str, ...]:
    """Return the objects that clauses are about, in the order of their first clause."""
    return tuple(dict.fromkeys(clause.family for clause in all_clauses()))


def judge(step: StepContext, level: Level = Level.STRUCTURAL, clauses: Iterable[Clause] | None = None) -> Judgement:
    """Run clauses over a step, and say also why some were not decided; never raises.

    Args:
        step: What to look at.
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
        found, reason = clause.outcome(step)
        if reason is not None:
            skipped[clause.id] = reason
        elif found:
            violations.extend(found)
        elif (needless := clause.without_subject(step)) is not None:
            skipped[clause.id] = needless
        else:
            held.append(clause.id)
    return Judgement(tuple(violations), tuple(held), MappingProxyType(skipped))
