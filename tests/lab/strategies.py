"""Hypothesis strategies of planted faults: nearly legal batches, and the laboratory's own faults."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.step.context import StepContext
from mla_contract.testing.lowering import LoweredKind
from mla_contract.testing.strategies import legal_draws, subject_of
from tests.lab.faults import Detection, PlantedFault, detect, planted_faults
from tests.lab.field_faults import field_faults
from tests.lab.known_misses import KNOWN_MISSES


@dataclass(frozen=True, slots=True)
class NearlyLegal:
    """A subject with one planted fault.

    Attributes:
        fault: What was done, to which field, and the codes that must report it.
        subject: The subject with the fault in it.
    """

    fault: PlantedFault
    subject: StepContext

    def detection(self) -> Detection:
        """Return what the checks say of the fault, planted anew."""
        return detect(self.fault)


@st.composite
def nearly_legal(draw: st.DrawFn, kind: LoweredKind | None = None) -> NearlyLegal:
    """Draw a legal subject and plant one mechanical fault in one of its fields, whatever its batch looks like."""
    made = draw(legal_draws(kind))
    fault = draw(st.sampled_from(list(field_faults(made.setup.kind.value, lambda: subject_of(made)))))
    return NearlyLegal(fault, fault.planted())


def known_faults(level: Level | None = None) -> st.SearchStrategy[PlantedFault]:
    """Draw one of the package's own planted faults that are reported; with a level, one that it reports first."""
    faults = [fault for fault in planted_faults() if fault.key not in KNOWN_MISSES]
    if level is not None:
        faults = [fault for fault in faults if detect(fault).level is level]
    return st.sampled_from(faults)
