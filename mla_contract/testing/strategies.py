"""Hypothesis strategies: legal batches with their metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from mla_contract.contract.step.context import StepContext
from mla_contract.testing.lowering import LoweredKind
from mla_contract.testing.random_batches import Chooser, Draw, Runner, draw_legal, draw_rows


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
def legal_draws(draw: st.DrawFn, kind: LoweredKind | None = None, runner: Runner | None = None) -> Draw:
    """Draw a legal batch with a configuration: any kind of record, sharing, compression, padding, either context."""
    return draw_legal(DrawnChooser(draw), kind, runner=runner)


@st.composite
def legal_lens(draw: st.DrawFn, threshold: int = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw query lengths and sequence lengths of a legal batch for a decode threshold."""
    rows = draw_rows(DrawnChooser(draw), threshold)
    return tuple(row.query for row in rows), tuple(row.query + row.context for row in rows)


@st.composite
def legal_subjects(draw: st.DrawFn, kind: LoweredKind | None = None) -> StepContext:
    """Draw a legal batch with its metadata and facts."""
    return subject_of(draw(legal_draws(kind)))


def subject_of(drawn: Draw) -> StepContext:
    """Return a drawn batch with its metadata, facts and declaration."""
    batch, metadata = drawn.build()
    setup = drawn.setup
    return StepContext(metadata=metadata, batch=batch, facts=setup.facts(), declaration=setup.declaration)
