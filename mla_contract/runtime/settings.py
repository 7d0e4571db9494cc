"""How much is checked: read from the environment, overridden by a context."""

from __future__ import annotations

import os
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from mla_contract.contract.clauses.clause import Level
from mla_contract.errors import InvalidContract

MODE_VARIABLE = "MLA_CONTRACT_VALIDATE"
LEVEL_VARIABLE = "MLA_CONTRACT_LEVEL"


class Mode(StrEnum):
    """What happens with a violation."""

    OFF = ""
    """Nothing is checked; the variable is unset or empty."""
    WARN = "warn"
    """Each distinct violation is logged once; nothing is raised."""
    ERROR = "error"
    """All violations of an object are raised at once."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The mode and the level."""

    mode: Mode = Mode.OFF
    level: Level = Level.STRUCTURAL


_override: ContextVar[Settings | None] = ContextVar("mla_contract_settings", default=None)

WordT = TypeVar("WordT", Mode, Level)


def current_settings() -> Settings:
    """Return the settings of the innermost ``validating``, or of the environment.

    Raises:
        InvalidContract: If a variable holds an unknown word.
    """
    return _override.get() or settings_from_environment()


def settings_from_environment() -> Settings:
    """Return the settings that the environment gives; words are lower case, and without a mode no other word counts.

    Raises:
        InvalidContract: If a mode is set, and a variable holds an unknown word.
    """
    mode, level = os.environ.get(MODE_VARIABLE, ""), os.environ.get(LEVEL_VARIABLE, "")
    if not mode:
        return Settings()
    return make_settings(mode, level or Level.STRUCTURAL.value)


def make_settings(mode: str, level: str) -> Settings:
    """Return settings from words.

    Raises:
        InvalidContract: If a word is unknown; the message lists the known ones.
    """
    return Settings(_word(Mode, mode, MODE_VARIABLE), _word(Level, level, LEVEL_VARIABLE))


def _word(kind: type[WordT], text: str, variable: str) -> WordT:
    """Return the member of an enumeration that a word names."""
    for member in kind:
        if member.value == text:
            return member
    known = ", ".join(member.value for member in kind if member.value)
    raise InvalidContract(f"{variable}: unknown word {text!r}; known: {known}")


def override(settings: Settings | None) -> Settings | None:
    """Set the settings of this context, and return what was set before."""
    before = _override.get()
    _override.set(settings)
    return before
