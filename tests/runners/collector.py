"""Looking at every build as the plugin does, and keeping what it says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mla_contract.contract.violation import Violation
from mla_contract.errors import ContractError
from mla_contract.plugin.hooks import install_hooks
from mla_contract.plugin.monitor import Monitor
from mla_contract.profiles.installed import installed_release, nearest_profile
from mla_contract.runtime.hook import validating

LEVELS = ("structural", "values")
RAISED = "RAISED"
"""In the place of a code: the check itself failed, which in an engine would be logged only."""


@dataclass(frozen=True, slots=True, eq=False)
class Build:
    """One build.

    Attributes:
        builder: The builder.
        batch: The common batch that it was given.
        record: What it returned.
        capturing: Whether it was built for a graph's capture.
        violations: What the check says, in both levels.
    """

    builder: Any
    batch: Any
    record: Any
    capturing: bool
    violations: tuple[Violation, ...]


class Collector(Monitor):
    """The plugin's monitor, which keeps its findings instead of ending the engine."""

    def __init__(self) -> None:
        super().__init__(nearest_profile(installed_release() or "unknown").minor)
        self.builds: list[Build] = []

    def look(self, builder: Any, batch: Any, result: Any, *, capturing: bool = False) -> None:
        """Check a build in both levels, and keep it."""
        found: dict[Violation, None] = {}
        for level in LEVELS:
            found.update(dict.fromkeys(self.say(builder, batch, result, capturing=capturing, level=level)))
        self.builds.append(Build(builder, batch, result, capturing, tuple(found)))

    def say(
        self, builder: Any, batch: Any, result: Any, *, capturing: bool = False, level: str = "values"
    ) -> tuple[Violation, ...]:
        """Return what the plugin says of a build in one level."""
        with validating("error", level) as settings:
            try:
                self._look(settings, builder, batch, result, capturing)
            except ContractError as error:
                return tuple(error.violations)
            except Exception as error:  # noqa: BLE001 - whatever it is, the survey counts it
                return (Violation(RAISED, type(builder).__name__, f"{type(error).__name__}: {error}"),)
        return ()

    def take(self) -> list[Build]:
        """Return the builds since the last call."""
        taken, self.builds = self.builds, []
        return taken


@dataclass(frozen=True, slots=True)
class Armed:
    """The hooks' collector of this process.

    Attributes:
        collector: It.
        hooks: What was wrapped.
    """

    collector: Collector
    hooks: tuple[str, ...] = field(default_factory=tuple)


def arm() -> Armed:
    """Wrap vLLM's hooks as the plugin does; once in a process."""
    collector = Collector()
    return Armed(collector, install_hooks(collector))
