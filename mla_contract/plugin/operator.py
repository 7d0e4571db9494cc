"""What an operator reads in the log while the engine runs: what is armed, what is checked, and totals as they grow."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock
from time import monotonic

logger = logging.getLogger("mla_contract")

_FIRST_WAIT_S = 60.0
_MOST_FAILURES = 20

Counts = Callable[[], list[tuple[str, str, int, int]]]


class Operator:
    """Writes each line once; totals at 10, 100, 1000, ... builds, and after a minute, two, four, ... with builds.

    A server is killed at its shutdown, so that what is written at exit alone is never read. A process that makes no
    builders says nothing.

    Attributes:
        armed: What to say when the first builders are made.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.armed = ""
        self._clock = clock
        self._wait = _FIRST_WAIT_S
        self._due = clock() + self._wait
        self._builds, self._next = 0, 10
        self._classes: set[tuple[str, str]] = set()
        self._failures: set[str] = set()
        self._lock = Lock()

    def say_armed(self) -> None:
        """Say what is armed, once."""
        with self._lock:
            text, self.armed = self.armed, ""
        if text:
            logger.info("mla-contract: %s", text)

    def say_checked(self, kind: str, name: str, counts: Counts) -> None:
        """Count a build; say that its class is checked when it is the first of it, and totals when they are due."""
        self.say_armed()
        with self._lock:
            is_new = (kind, name) not in self._classes
            self._classes.add((kind, name))
            self._builds += 1
            is_due = self._is_due()
        if is_new:
            logger.info("mla-contract: checks %s metadata of %s from here on", kind, name)
        if is_due:
            logger.info("mla-contract: checked so far: %s", "; ".join(_totals(counts)))

    def _is_due(self) -> bool:
        """Return whether totals are due, and set when they are due again."""
        by_count, by_time = self._builds >= self._next, self._clock() >= self._due
        if by_count:
            self._next *= 10
        if by_time:
            self._wait *= 2
            self._due = self._clock() + self._wait
        return by_count or by_time

    def say_failed(self, error: Exception) -> None:
        """Say that the check itself failed, with the traceback, once for each text and not without end."""
        text = f"{type(error).__name__}: {error}"
        with self._lock:
            is_new = text not in self._failures and len(self._failures) < _MOST_FAILURES
            if is_new:
                self._failures.add(text)
        if is_new:
            logger.error("mla-contract: the check itself failed; the build goes on unchecked", exc_info=error)


def _totals(counts: Counts) -> list[str]:
    """Return what was checked, a text for each class."""
    return [f"{builds} {kind} {name}, {broken} broken" for kind, name, builds, broken in counts()]
