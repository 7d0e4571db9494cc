"""Results of runs, kept so that a function is run again only where that could report more."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from mla_contract.audit.flow.values import CONFIG, DATA, Value


@dataclass(frozen=True, slots=True)
class _Run:
    capabilities: frozenset[str]
    config: frozenset[int]
    result: Value


class Memo:
    """Results by function and arguments.

    A run covers a later one with equal arguments if it stood behind no capability that the later one lacks, and if what
    it knew to come from the configuration is known to the later one too: whatever the later run reads, it has reported,
    with the same or fewer conditions.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._runs: dict[Hashable, list[_Run]] = {}

    def find(self, function: Hashable, values: tuple[Value | None, ...], capabilities: frozenset[str]) -> Value | None:
        """Return the result of a run that covers this one, or None."""
        config = _config_positions(values)
        for run in self._runs.get((function, _blurred(values)), ()):
            if run.capabilities <= capabilities and run.config <= config:
                return run.result
        return None

    def keep(
        self, function: Hashable, values: tuple[Value | None, ...], capabilities: frozenset[str], result: Value
    ) -> None:
        """Remember the result of a run; a provisional one is replaced."""
        config = _config_positions(values)
        runs = self._runs.setdefault((function, _blurred(values)), [])
        runs[:] = [run for run in runs if (run.capabilities, run.config) != (capabilities, config)]
        runs.append(_Run(capabilities, config, result))


def _blurred(values: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
    return tuple(DATA if value == CONFIG else value for value in values)


def _config_positions(values: tuple[Value | None, ...]) -> frozenset[int]:
    return frozenset(position for position, value in enumerate(values) if value == CONFIG)
