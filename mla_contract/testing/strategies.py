"""Hypothesis strategies: legal batches and metadata, and nearly legal ones with one planted fault that is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from mla_contract.contract.clauses.clause import Tier
from mla_contract.contract.clauses.subject import Subject
from mla_contract.testing.draws import Chooser, Draw, draw_legal, draw_rows
from mla_contract.testing.faults import Detection, PlantedFault, detect, planted_faults
from mla_contract.testing.known_misses import KNOWN_MISSES
from mla_contract.testing.lowering import Kind


class DrawnChooser(Chooser):
    """Draws numbers from Hypothesis, so that it can shrink them."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def number(self, low: int, high: int) -> int:
        """Return an int from ``low`` to ``high``, both included."""
        return self._draw(st.integers(low, high))

    def one(self, options: Sequence[Any]) -> Any:
        """Return one of the options; shrinks to the first."""
        return self._draw(st.sampled_from(options))


@st.composite
def legal_draws(draw: st.DrawFn, kind: Kind | None = None) -> Draw:
    """Draw a legal batch with a configuration: any kind of record, sharing, compression, padding, either context."""
    return draw_legal(DrawnChooser(draw), kind)


@st.composite
def legal_lens(draw: st.DrawFn, threshold: int = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw query lengths and sequence lengths of a legal batch for a decode threshold."""
    rows = draw_rows(DrawnChooser(draw), threshold)
    return tuple(row.query for row in rows), tuple(row.query + row.context for row in rows)


@st.composite
def legal_subjects(draw: st.DrawFn, kind: Kind | None = None) -> Subject:
    """Draw a legal batch with its metadata and facts."""
    return _subject(draw(legal_draws(kind)))


def _subject(drawn: Draw) -> Subject:
    """Return a drawn batch with its metadata, facts and declaration."""
    batch, metadata = drawn.build()
    setup = drawn.setup
    return Subject(metadata=metadata, batch=batch, facts=setup.facts(), declaration=setup.declaration)


@dataclass(frozen=True, slots=True)
class NearlyLegal:
    """A subject with one planted fault.

    Attributes:
        fault: What was done, to which field, and the codes that must report it.
        subject: The subject with the fault in it.
    """

    fault: PlantedFault
    subject: Subject

    def detection(self) -> Detection:
        """Return what the checks say of the fault, planted anew."""
        return detect(self.fault)


@st.composite
def nearly_legal(draw: st.DrawFn, kind: Kind | None = None) -> NearlyLegal:
    """Draw a legal subject and plant one mechanical fault in one of its fields, whatever its batch looks like."""
    from mla_contract.testing.field_faults import field_faults

    made = draw(legal_draws(kind))
    fault = draw(st.sampled_from(list(field_faults(made.setup.kind.value, lambda: _subject(made)))))
    return NearlyLegal(fault, fault.planted())


def known_faults(tier: Tier | None = None) -> st.SearchStrategy[PlantedFault]:
    """Draw one of the package's own planted faults that are reported; with a tier, one that it reports first."""
    faults = [fault for fault in planted_faults() if fault.key not in KNOWN_MISSES]
    if tier is not None:
        faults = [fault for fault in faults if detect(fault).tier is tier]
    return st.sampled_from(faults)
