"""Runs the conformance suite on several targets, and counts on how many builds each clause was decided."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mla_contract.contract.clauses.registry import all_clauses
from mla_contract.contract.violation import Violation
from mla_contract.runtime import MetadataReport
from mla_contract.testing.conformance import CHECKS, Verdict, run_check
from mla_contract.testing.corpus import conformance_batches
from mla_contract.testing.target import Factory
from mla_contract.testing.targets import NamedTarget

STRUCTURE = "structure"
"""The row of what no clause states: missing fields, types, shapes."""


@dataclass
class Count:
    """One clause on one target; every number counts builds.

    Attributes:
        held: Builds on which it was decided and holds.
        violated: Batches of the builds on which it is broken.
        undecided: Builds on which it was not decided, by the reason.
    """

    held: int = 0
    violated: list[str] = field(default_factory=list)
    undecided: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def decided(self) -> int:
        """Builds on which it was decided."""
        return self.held + len(self.violated)


@dataclass
class Card:
    """Everything that is said of one target.

    Attributes:
        name: The target.
        reason: Why it could not be checked; empty when it was.
        builds: Builds whose records were judged.
        batches: Batches that were built.
        skipped_batches: Why each other batch was not.
        counts: By clause.
        structure: Records whose fields, types and shapes were checked.
        structural: Batches whose records have a wrong structure, by code.
        examples: The first violation of each code, with the batch.
        errors: What the builder raised, each line of its source once, with the batch.
    """

    name: str
    reason: str = ""
    builds: int = 0
    batches: int = 0
    skipped_batches: dict[str, str] = field(default_factory=dict)
    counts: dict[str, Count] = field(default_factory=lambda: {clause.id: Count() for clause in all_clauses()})
    structure: int = 0
    structural: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    examples: dict[str, tuple[str, Violation]] = field(default_factory=dict)
    errors: dict[tuple[str, int], tuple[str, Exception]] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether the target was checked and nothing is violated."""
        return not self.reason and not self.examples

    @property
    def decided(self) -> tuple[str, ...]:
        """Clauses that were decided on any build."""
        return tuple(code for code, count in self.counts.items() if count.decided)

    def of_family(self, family: str) -> dict[str, Count]:
        """Return the clauses of one family."""
        return {clause.id: self.counts[clause.id] for clause in all_clauses() if clause.family == family}


def score_targets(
    targets: Sequence[NamedTarget], progress: Callable[[str], None] = lambda name: None
) -> tuple[Card, ...]:
    """Run every check on every batch for every target; variants of one target are counted together.

    Args:
        targets: The targets.
        progress: Is told the name of each target before it is checked.

    Raises:
        InvalidConfig: A factory returns something that is not a target.
    """
    cards: dict[str, Card] = {}
    for target in targets:
        progress(target.label)
        card = cards.setdefault(target.name, Card(target.name, target.reason))
        if target.factory is not None:
            _score(card, target, target.factory)
    return tuple(cards.values())


def _score(card: Card, target: NamedTarget, factory: Factory) -> None:
    """Add what every check says of a target."""
    for spec in conformance_batches().values():
        verdicts = [run_check(check, factory, spec) for check in CHECKS]
        for verdict in verdicts:
            _add(card, target.place(spec.name), verdict)
        card.batches += any(verdict.skipped is None for verdict in verdicts)


def _add(card: Card, batch: str, verdict: Verdict) -> None:
    """Add one verdict to a card."""
    if verdict.skipped is not None:
        if verdict.skipped.startswith("cannot be planned"):
            card.skipped_batches[batch] = verdict.skipped
        return
    if verdict.error is not None:
        card.errors.setdefault(_line_of(verdict.error), (batch, verdict.error))
    broken = dict.fromkeys(violation.code for violation in verdict.violations)
    for violation in verdict.violations:
        card.examples.setdefault(violation.code, (batch, violation))
    for code in broken:
        if code in card.counts:
            card.counts[code].violated.append(batch)
        else:
            card.structural[code].append(batch)
    for code in verdict.decided:
        card.counts[code].held += code not in broken
    for report in verdict.builds:
        _add_build(card, report, set(broken) | set(verdict.decided))


def _add_build(card: Card, report: MetadataReport, known: set[str]) -> None:
    """Add the judgement of one build: a clause is decided where it is on any of the build's records."""
    card.builds += 1
    card.structure += len(report.held)
    held = {code for codes in report.held.values() for code in codes}
    for code in held - known:
        card.counts[code].held += 1
    for reasons in report.skipped.values():
        for code, reason in reasons.items():
            if code not in held and code not in known:
                card.counts[code].undecided[reason] += 1


def _line_of(error: Exception) -> tuple[str, int]:
    """Return file and line at which an error was raised."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return ("", 0) if last is None else (last.tb_frame.f_code.co_filename, last.tb_lineno)
