"""Targets that read device memory in build(), each in its own way; the suite must say where."""

from __future__ import annotations

from typing import Any

import torch

from mla_contract.testing.lowering import LoweredKind
from mla_contract.testing.targets import ReferenceTarget
from tests.testing.helpers_of_targets import longest_of


class _Reading(ReferenceTarget):
    """The reference, which looks at the batch first."""

    def __init__(self) -> None:
        super().__init__(LoweredKind.DENSE)

    def build(self, batch: Any) -> Any:
        """Return the reference's record."""
        self.look(batch)
        return super().build(batch)

    def look(self, batch: Any) -> None:
        """Look at the batch."""


class Item(_Reading):
    """Reads one element."""

    def look(self, batch: Any) -> None:
        """Read the longest sequence."""
        batch.seq_lens.max().item()


class DerivedList(_Reading):
    """Reads what was computed from the batch."""

    def look(self, batch: Any) -> None:
        """Read query lengths."""
        lens = batch.query_start_loc[1:] - batch.query_start_loc[:-1]
        lens.tolist()


class InHelper(_Reading):
    """Reads in a function of another file."""

    def look(self, batch: Any) -> None:
        """Ask the helper."""
        longest_of(batch.seq_lens)


class ThroughBuffer(_Reading):
    """Reads a buffer of its own into which device values were copied at the step before."""

    def __init__(self) -> None:
        super().__init__()
        self._lens = torch.zeros(256, dtype=torch.int32)

    def look(self, batch: Any) -> None:
        """Read what the last step left, and leave this step's."""
        self._lens[:4].tolist()
        self._lens[: batch.num_reqs].copy_(batch.seq_lens)


class Mask(_Reading):
    """Selects by a mask, whose count the host must know."""

    def look(self, batch: Any) -> None:
        """Select live requests."""
        _ = batch.seq_lens[batch.seq_lens > 0]


class HostOnly(_Reading):
    """Reads host copies, and computes on the device: the control."""

    def look(self, batch: Any) -> None:
        """Look at what may be looked at."""
        batch.query_start_loc_cpu.tolist()
        batch.seq_lens_cpu_upper_bound.max().item()
        self.kept = (batch.seq_lens + 1).cumsum(0).masked_fill(batch.seq_lens > 0, 0)
        self.kept[batch.seq_lens > 0] = 7
