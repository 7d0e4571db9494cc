"""What ``warn`` does with violations: each distinct one is logged once, and all are counted until exit."""

from __future__ import annotations

import atexit
import logging
import re
from collections import Counter
from collections.abc import Hashable, Iterable
from threading import Lock
from typing import TypeVar

from mla_contract.contract.violation import Violation

logger = logging.getLogger("mla_contract")

_INDEX = re.compile(r"\[[^\]]*\]")

MOST_KINDS = 1000
"""Kinds that are counted apart: more than any engine has, and little memory where names never repeat."""

KeyT = TypeVar("KeyT", bound=Hashable)


def counted_as(counts: Counter[KeyT], key: KeyT, others: KeyT) -> KeyT:
    """Return the key under which to count: its own, or that of all others once there are ``MOST_KINDS``."""
    return key if key in counts or len(counts) < MOST_KINDS else others


class Tally:
    """Counts violations by code and path; holds texts, never the objects they are about."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = Lock()
        self._registered = False

    def add(self, violations: Iterable[Violation]) -> None:
        """Log violations that are new, and count all."""
        for violation in violations:
            own = (violation.code, _INDEX.sub("[]", violation.path))
            with self._lock:
                key = counted_as(self._counts, own, _OTHERS)
                self._counts[key] += 1
                is_new = self._counts[key] == 1
                if not self._registered:
                    self._registered = True
                    atexit.register(self.log_table)
            if is_new and key == own:
                logger.warning("mla-contract: %s", violation.render())
            elif is_new:
                logger.warning(
                    "mla-contract: more than %d kinds of violations; the others are counted as one", MOST_KINDS
                )

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how often each (code, path) was seen."""
        with self._lock:
            return dict(self._counts)

    def table(self) -> str:
        """Return one line for each distinct violation, the most frequent first; empty when there is none."""
        rows = sorted(self.counts().items(), key=lambda row: (-row[1], row[0]))
        return "\n".join(f"{count:>8}  {code}  {path}" for (code, path), count in rows)

    def log_table(self) -> None:
        """Log the table, if there is anything in it."""
        table = self.table()
        if table:
            logger.warning("mla-contract: violations in this process:\n%s", table)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._counts.clear()


_OTHERS = "any", "(all other kinds)"

_tally = Tally()


def tally() -> Tally:
    """Return the tally of this process."""
    return _tally
