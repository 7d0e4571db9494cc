"""Planted faults: one change to a legal subject, with the field it is made in and the codes that must report it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache

from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.violation import Violation
from mla_contract.runtime import check_metadata

Change = Callable[[StepContext], "StepContext | None"]
"""Changes a subject in place, or returns another one."""


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """One fault.

    Attributes:
        kind: What was done, such as ``dtype`` or ``stale tail``.
        base: Name of the legal subject that it is planted in.
        owner: Class of the record that holds the field.
        path: The field that a report must name, such as ``PlainSparse.prefill.max_query_len``.
        codes: Codes of which at least one must be reported.
        subject: Makes the legal subject anew.
        change: Makes it illegal.
        protocol: The Protocol that the metadata is checked against; None checks it by its looks.
        also: Other paths that a report may name, where two fields contradict each other and either may be wrong.
    """

    kind: str
    base: str
    owner: str
    path: str
    codes: tuple[str, ...]
    subject: Callable[[], StepContext] = field(repr=False)
    change: Change = field(repr=False)
    protocol: type | None = None
    also: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes a fault distinct: its kind and the field, whatever the batch and the index in a list."""
        return self.kind, self.owner, self.path.rpartition(".")[2]

    def planted(self) -> StepContext:
        """Return the subject with the fault in it."""
        made = self.subject()
        return replace(self.change(made) or made)  # a context is what its records were when it was made


@dataclass(frozen=True, slots=True)
class Detection:
    """What a check said of a planted fault.

    Attributes:
        level: The first level that reports it as expected; None when neither does.
        code: The code that does.
        exact: Whether the report names the very field, rather than the record that holds it.
        violations: Everything that was reported in the last level that ran.
    """

    level: Level | None
    code: str
    exact: bool
    violations: tuple[Violation, ...]


def check_subject(subject: StepContext, level: Level, protocol: type | None = None) -> tuple[Violation, ...]:
    """Return every breach by a subject's metadata and batch.

    Sync: none in the structural level; reads device memory in the values level
    """
    return check_metadata(
        subject.batch if subject.metadata is None else subject.metadata,
        protocol,
        batch=subject.batch,
        declaration=subject.declaration,
        facts=subject.facts,
        trace=subject.trace,
        level=level,
    )


def detect(fault: PlantedFault) -> Detection:
    """Plant a fault, and return which level reports it under an expected code and at the right place."""
    found: tuple[Violation, ...] = ()
    for level in (Level.STRUCTURAL, Level.VALUES):
        found = _reported(fault, level)
        hits = [(violation, _place(violation.path, fault)) for violation in found if violation.code in fault.codes]
        exact = next((violation for violation, place in hits if place == "field"), None)
        near = next((violation for violation, place in hits if place == "record"), None)
        hit = exact or near
        if hit is not None:
            return Detection(level, hit.code, exact is not None, found)
    return Detection(None, "", False, found)


def _reported(fault: PlantedFault, level: Level) -> tuple[Violation, ...]:
    subject = fault.planted()
    if subject.metadata is None and subject.batch is None:
        from mla_contract.contract.clauses.registry import judge

        return judge(subject, level).violations
    return check_subject(subject, level, fault.protocol)


def _place(path: str, fault: PlantedFault) -> str:
    """Return ``field``, ``record`` or nothing: how closely a reported path names the fault's field."""
    if path == fault.path or path in fault.also:
        return "field"
    inside = fault.path.startswith((f"{path}.", f"{path}["))
    return "record" if inside and "." in path else ""


def distinct(faults: Iterable[PlantedFault]) -> tuple[PlantedFault, ...]:
    """Return the first fault of each key."""
    found: dict[tuple[str, str, str], PlantedFault] = {}
    for fault in faults:
        found.setdefault(fault.key, fault)
    return tuple(found.values())


@cache
def planted_faults() -> tuple[PlantedFault, ...]:
    """Return every distinct planted fault of the package: the mechanical ones first, then those made by hand."""
    from tests.lab.field_faults import field_faults
    from tests.lab.subjects import BASES
    from tests.lab.value_faults import value_faults

    mechanical = (fault for name, base in BASES.items() for fault in field_faults(name, base))
    return distinct((*mechanical, *value_faults()))
