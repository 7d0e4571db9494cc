"""Which known minor release stands for a version of vLLM: the one policy of planner, validator, profiles and engine.

A fork's own numbering, a build of the main branch and a release that came out after this package must all be served:
what is unknown gets the nearest known minor release, and is said once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

logger = logging.getLogger("mla_contract")

_MINOR = re.compile(r"v?0\.([0-9]{1,6})(?![0-9])")
_BUILT_WITHOUT_TAGS = re.compile(r"v?0\.[01]\.dev")
"""What setuptools-scm calls a checkout that has no tags, whatever its age. Source: vLLM issue 20664."""


@dataclass(frozen=True, slots=True)
class NearestMinor:
    """The release whose behaviour is used.

    Attributes:
        minor: A known minor release, such as ``0.32``.
        is_exact: Whether it is that of the version asked for.
    """

    minor: str
    is_exact: bool

    @property
    def number(self) -> int:
        """N of ``0.N``."""
        return int(self.minor.removeprefix("0."))


def nearest_minor(release: str | None, known: Sequence[str]) -> NearestMinor:
    """Return the known minor release nearest to a version, and log once in a process what stands for an unknown one.

    Of two that are equally near, the older one. The newest stands for whatever cannot be placed: another major
    version, a name, a build without tags, None.

    Args:
        release: A version such as ``0.32.0``, ``v0.32.1rc1+cpu`` or ``0.32``; None where none is known.
        known: Minor releases such as ``0.32``; at least one.
    """
    numbers = sorted(int(minor.removeprefix("0.")) for minor in known)
    wanted = _number(release)
    number = numbers[-1] if wanted is None else min(numbers, key=lambda number: abs(number - wanted))
    found = NearestMinor(f"0.{number}", is_exact=number == wanted)
    if not found.is_exact:
        _say(release, found.minor)
    return found


def _number(release: str | None) -> int | None:
    """Return N of a version ``0.N``; None for anything that has no place among the releases of vLLM."""
    version = "" if release is None else release.strip()
    found = _MINOR.match(version)
    if found is None or _BUILT_WITHOUT_TAGS.match(version):
        return None
    return int(found.group(1))


@cache
def _say(release: str | None, minor: str) -> None:
    """Log it; the cache makes it once."""
    logger.warning("vLLM %s is not known to this version of mla-contract: taken as %s", release or "unknown", minor)
