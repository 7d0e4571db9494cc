"""A clause as a record, and the decorator that makes one from a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mla_contract.contract.violation import Violation
from mla_contract.errors import InvalidContract

if TYPE_CHECKING:
    from mla_contract.contract.clauses.need import Need
    from mla_contract.contract.step.context import StepContext


class Level(StrEnum):
    """The depth of a check: what a clause may read."""

    STRUCTURAL = "structural"
    """Host integers, shapes, dtypes, strides and host copies; never synchronises."""
    VALUES = "values"
    """Elements of device arrays; synchronises, and is refused during stream capture."""


@dataclass(frozen=True, slots=True)
class Breach:
    """What a check found, before the clause's id is put on it."""

    path: str
    message: str
    expected: str = ""
    got: str = ""
    axes: Mapping[str, int] = field(default_factory=dict, hash=False)
    help: str = ""


Found = tuple[Breach, ...]
FINE: Found = ()
"""The result of a check that holds."""

Probe = Callable[["StepContext"], Found]


@dataclass(frozen=True, slots=True)
class Clause:
    """One invariant.

    Attributes:
        id: Stable code.
        name: The check's name without its prefix.
        family: The object it is about: the module's name.
        sentence: The invariant, in one sentence.
        level: What it may read.
        needs: What must be known before it can be decided; the probe reads it without asking again.
        incident: Public cases.
        example: The smallest batch that breaks it, as text.
        help: What to do.
        probe: The bare check; may raise on records whose structure is broken.
    """

    id: str
    name: str
    family: str
    sentence: str
    level: Level
    needs: tuple[Need, ...]
    incident: tuple[str, ...]
    example: str
    help: str
    probe: Probe

    def lacks(self, step: StepContext) -> str | None:
        """Return what a step does not say that this clause needs, or None; never raises."""
        try:
            return next((lacking.text for need in self.needs if (lacking := need.first_unmet(step))), None)
        except Exception as error:  # noqa: BLE001 - the records are foreign; what cannot be read is not known
            return f"undecidable: {type(error).__name__}"

    def without_subject(self, step: StepContext) -> str | None:
        """Return which of its needs is about other steps than this, so that it holds for want of a subject, or None."""
        absent = (need for need in self.needs if need.where is not None and not need.where(step))
        return next((f"a step with a subject: {need.text}" for need in absent), None)

    def check(self, step: StepContext) -> tuple[Violation, ...]:
        """Return every breach of this clause; never raises."""
        return self.outcome(step)[0]

    def outcome(self, step: StepContext) -> tuple[tuple[Violation, ...], str | None]:
        """Return the breaches, and why the clause does not apply (None when it does); never raises."""
        reason = self.lacks(step)
        if reason is not None:
            return (), reason
        try:
            found = self.probe(step)
        except Exception as error:  # noqa: BLE001 - the records are foreign; what cannot be read cannot be decided
            return (), f"undecidable: {type(error).__name__}"
        return self.violations(found), None

    def violations(self, found: Found) -> tuple[Violation, ...]:
        """Return breaches under this clause's id."""
        return tuple(
            Violation(self.id, one.path, one.message, one.expected, one.got, dict(one.axes), one.help or self.help)
            for one in found
        )


CLAUSES: dict[str, Clause] = {}
"""Every clause of the modules imported so far, by id."""


def clause(
    code: str,
    sentence: str,
    *,
    needs: tuple[Need, ...],
    incident: str,
    example: str,
    help: str,
    level: str = "structural",
) -> Callable[[Probe], Callable[[Any], tuple[Violation, ...]]]:
    """Register the decorated check as a clause, and return the check that never raises.

    Raises:
        InvalidContract: If the id is taken.
    """

    def register(probe: Probe) -> Callable[[Any], tuple[Violation, ...]]:
        if code in CLAUSES:
            raise InvalidContract(f"clause {code} is stated twice")
        family = probe.__module__.rpartition(".")[2]
        name = probe.__name__.removeprefix("check_")
        made = Clause(code, name, family, sentence, Level(level), needs, tuple(incident.split()), example, help, probe)
        CLAUSES[code] = made
        return made.check

    return register
