"""A clause as a record, and the decorator that makes one from a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mla_contract.contract.violation import Violation
from mla_contract.errors import InvalidContract

if TYPE_CHECKING:
    from mla_contract.contract.step.context import StepContext


class Level(StrEnum):
    """What a clause may read."""

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


class NotApplicable(tuple[Breach, ...]):
    """An empty result that says why the clause could not be decided."""

    __slots__ = ()
    _reasons: dict[int, str] = {}

    @property
    def reason(self) -> str:
        """What was lacking."""
        return self._reasons[id(self)]


Found = tuple[Breach, ...]
FINE: Found = ()
"""The result of a check that holds."""

_LACKING: dict[str, NotApplicable] = {}


def lacks(what: str) -> NotApplicable:
    """Return the result "does not apply: ``what`` is not known"; one object for each text."""
    known = _LACKING.get(what)
    if known is None:
        known = _LACKING[what] = NotApplicable()
        NotApplicable._reasons[id(known)] = what
    return known


Probe = Callable[["StepContext"], Found]


@dataclass(frozen=True, slots=True)
class Clause:
    """One invariant.

    Attributes:
        id: Stable code.
        name: The check's name without its prefix.
        family: The object it is about: the module's name.
        invariant: Its id in the project's list of invariants.
        sentence: The invariant, in one sentence.
        level: What it may read.
        incident: Public cases.
        example: The smallest batch that breaks it, as text.
        help: What to do.
        probe: The bare check; may raise on records whose structure is broken.
    """

    id: str
    name: str
    family: str
    invariant: str
    sentence: str
    level: Level
    incident: tuple[str, ...]
    example: str
    help: str
    probe: Probe

    def check(self, subject: StepContext) -> tuple[Violation, ...]:
        """Return every breach of this clause; never raises."""
        return self.outcome(subject)[0]

    def outcome(self, subject: StepContext) -> tuple[tuple[Violation, ...], str | None]:
        """Return the breaches, and why the clause does not apply (None when it does); never raises."""
        try:
            found = self.probe(subject)
        except Exception as error:  # noqa: BLE001 - the records are foreign; what cannot be read cannot be decided
            return (), f"undecidable: {type(error).__name__}"
        if isinstance(found, NotApplicable):
            return (), found.reason
        return tuple(self._violation(breach) for breach in found), None

    def _violation(self, breach: Breach) -> Violation:
        return Violation(
            self.id,
            breach.path,
            breach.message,
            breach.expected,
            breach.got,
            dict(breach.axes),
            breach.help or self.help,
        )


CLAUSES: dict[str, Clause] = {}
"""Every clause of the modules imported so far, by id."""


def clause(
    code: str,
    sentence: str,
    *,
    level: str = "structural",
    invariant: str,
    incident: str,
    example: str,
    help: str,
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
        cases = tuple(incident.split())
        made = Clause(code, name, family, invariant, sentence, Level(level), cases, example, help, probe)
        CLAUSES[code] = made
        return made.check

    return register
