"""Results of runs, kept so that a function is run again only where that could report more."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from mla_contract.audit.flow.values import CONFIG, DATA, Value


@dataclass(frozen=True, slots=True)
class KeptRun:
    """One run of a function.

    Attributes:
        capabilities: The capabilities that it stood behind.
        config: Positions of the arguments that it knew to come from the configuration.
        depth: Depth of its call, where calls were left out for it; 0 where it is whole.
        result: What it returned.
    """

    capabilities: frozenset[str]
    config: frozenset[int]
    depth: int
    result: Value


class Memo:
    """Results by function and arguments.

    A run covers a later one with equal arguments if it stood behind no capability that the later one lacks, and if what
    it knew to come from the configuration is known to the later one too: whatever the later run reads, it has reported,
    with the same or fewer conditions. A run that had to leave calls out, for the depth of its own call, covers only
    those that are as deep.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._runs: dict[Hashable, list[KeptRun]] = {}

    def find(
        self, function: Hashable, values: tuple[Value | None, ...], capabilities: frozenset[str], depth: int
    ) -> KeptRun | None:
        """Return a run that covers this one, or None."""
        config = _config_positions(values)
        for run in self._runs.get((function, _blurred(values)), ()):
            if run.capabilities <= capabilities and run.config <= config and run.depth <= depth:
                return run
        return None

    def keep(
        self,
        function: Hashable,
        values: tuple[Value | None, ...],
        capabilities: frozenset[str],
        result: Value,
        depth: int = 0,
    ) -> None:
        """Remember the result of a run; a provisional one is replaced.

        Args:
            function: The function and the form of the call.
            values: What it is called with.
            capabilities: The capabilities that the run stands behind.
            result: What it returns.
            depth: Depth of the call, where calls were left out for it; 0 where the run is whole.
        """
        config = _config_positions(values)
        runs = self._runs.setdefault((function, _blurred(values)), [])
        # The provisional result of this very run goes; those with other conditions may cover other calls.
        runs[:] = [run for run in runs if (run.capabilities, run.config) != (capabilities, config)]
        runs.append(KeptRun(capabilities, config, depth, result))


# A run that took a value for the batch's covers one that knows it to be settled, never the other way round. So the two
# are one value in the key, and the positions where they were told apart are compared as sets.
def _blurred(values: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
    return tuple(DATA if value == CONFIG else value for value in values)


def _config_positions(values: tuple[Value | None, ...]) -> frozenset[int]:
    return frozenset(position for position, value in enumerate(values) if value == CONFIG)
