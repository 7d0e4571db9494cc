"""Arming: the nestable context, and the hook behind ``narrow``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.schema import narrow
from mla_contract.contract.violation import Violation
from mla_contract.errors import ContractError
from mla_contract.runtime.check import check_metadata
from mla_contract.runtime.settings import (
    Mode,
    Settings,
    current_settings,
    make_settings,
    override,
    settings_from_environment,
)
from mla_contract.runtime.tally import tally

logger = logging.getLogger("mla_contract")

_lock = Lock()
_armed = 0


def respond(settings: Settings, violations: tuple[Violation, ...]) -> None:
    """Do what the mode says about violations.

    Raises:
        ContractError: In the mode ``error``, with all of them.
    """
    if not violations:
        return
    if settings.mode is Mode.ERROR:
        raise ContractError(violations=violations)
    tally().add(violations)


def _narrowed(obj: object, protocol: object) -> None:
    """Check an object on its way through ``narrow``."""
    settings = current_settings()
    if settings.mode is not Mode.OFF:
        respond(settings, check_metadata(obj, protocol, level=settings.level))


def _arm(change: int) -> None:
    """Set the hook of ``narrow`` while anything is armed."""
    global _armed
    with _lock:
        _armed += change
        narrow.validator = _narrowed if _armed else None


def arm_from_environment() -> None:
    """Arm ``narrow`` if the environment sets a mode.

    Raises:
        InvalidContract: If a variable holds an unknown word.
    """
    settings = settings_from_environment()
    if settings.mode is not Mode.OFF and not _armed:
        _arm(1)
        logger.debug("mla-contract: mode %s, level %s", settings.mode.value, settings.level.value)


@contextmanager
def validating(mode: str = Mode.ERROR, level: str = Level.STRUCTURAL) -> Iterator[Settings]:
    """Set mode and level for a block; blocks nest, and the innermost counts.

    Args:
        mode: ``""`` for off, ``warn`` or ``error``.
        level: ``structural`` or ``values``.

    Raises:
        InvalidContract: If a word is unknown.
    """
    settings = make_settings(mode, level)
    before = override(settings)
    _arm(1)
    try:
        yield settings
    finally:
        _arm(-1)
        override(before)
