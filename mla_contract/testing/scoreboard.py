"""Runs the conformance suite on several targets, and adds up what each clause family says of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mla_contract.contract.clauses.registry import all_clauses, families
from mla_contract.contract.violation import Violation
from mla_contract.testing.conformance import CHECKS, Verdict, run_check
from mla_contract.testing.corpus import conformance_batches
from mla_contract.testing.targets import NamedTarget

STRUCTURE = "structure"
"""The row of violations that no clause states: missing fields, types, shapes."""


@dataclass
class Cell:
    """One clause family on one target.

    Attributes:
        held: Clauses that were decided on some batch, and broken on none.
        violated: Clauses that were broken, with the batches.
        skipped: Clauses that no batch decided, with the reason.
    """

    held: set[str] = field(default_factory=set)
    violated: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass
class Card:
    """Everything that is said of one target.

    Attributes:
        name: The target.
        reason: Why it could not be checked; empty when it was.
        batches: Batches that were checked.
        skipped_batches: Why each other batch was not.
        cells: By clause family, and ``STRUCTURE``.
        examples: The first violation of each code, with the batch.
    """

    name: str
    reason: str = ""
    batches: int = 0
    skipped_batches: dict[str, str] = field(default_factory=dict)
    cells: dict[str, Cell] = field(default_factory=lambda: {name: Cell() for name in (STRUCTURE, *families())})
    examples: dict[str, tuple[str, Violation]] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether the target was checked and nothing is violated."""
        return not self.reason and not self.examples


def score_targets(
    targets: Sequence[NamedTarget], progress: Callable[[str], None] = lambda name: None
) -> tuple[Card, ...]:
    """Run every check on every batch for every target.

    Args:
        targets: The targets.
        progress: Is told the name of each target before it is checked.
    """
    cards = []
    for target in targets:
        progress(target.name)
        cards.append(_card(target))
    return tuple(cards)


def _card(target: NamedTarget) -> Card:
    card = Card(target.name, target.reason)
    if target.factory is None:
        return card
    family_of = {clause.id: clause.family for clause in all_clauses()}
    skipped: dict[str, str] = {}
    for spec in conformance_batches().values():
        for check in CHECKS:
            verdict = run_check(check, target.factory, spec)
            _add(card, spec.name, verdict, family_of, skipped)
        card.batches += spec.name not in card.skipped_batches
    for code, reason in skipped.items():
        cell = card.cells[family_of[code]]
        if code not in cell.held and code not in cell.violated:
            cell.skipped[code] = reason
    return card


def _add(card: Card, batch: str, verdict: Verdict, family_of: dict[str, str], skipped: dict[str, str]) -> None:
    """Add one verdict to a card."""
    if verdict.skipped is not None:
        if verdict.skipped.startswith("cannot be planned"):
            card.skipped_batches[batch] = verdict.skipped
        return
    for violation in verdict.violations:
        cell = card.cells[family_of.get(violation.code, STRUCTURE)]
        cell.violated[violation.code].add(batch)
        cell.held.discard(violation.code)
        card.examples.setdefault(violation.code, (batch, violation))
    if verdict.report is None:
        return
    for codes in verdict.report.held.values():
        for code in codes:
            cell = card.cells[family_of[code]]
            if code not in cell.violated:
                cell.held.add(code)
    for reasons in verdict.report.skipped.values():
        skipped.update(reasons)
