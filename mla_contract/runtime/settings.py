"""How much is checked: read from the environment, overridden by a context."""

from __future__ import annotations

import os
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from mla_contract.contract.clauses.clause import Tier
from mla_contract.errors import InvalidContract

MODE_VARIABLE = "MLA_CONTRACT_VALIDATE"
TIER_VARIABLE = "MLA_CONTRACT_TIER"


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
    """The mode and the tier."""

    mode: Mode = Mode.OFF
    tier: Tier = Tier.STRUCTURAL


_override: ContextVar[Settings | None] = ContextVar("mla_contract_settings", default=None)

WordT = TypeVar("WordT", Mode, Tier)


def current_settings() -> Settings:
    """Return the settings of the innermost ``validating``, or of the environment.

    Raises:
        InvalidContract: If a variable holds an unknown word.
    """
    return _override.get() or settings_from_environment()


def settings_from_environment() -> Settings:
    """Return the settings that the environment gives; words are lower case.

    Raises:
        InvalidContract: If a variable holds an unknown word.
    """
    mode, tier = os.environ.get(MODE_VARIABLE, ""), os.environ.get(TIER_VARIABLE, "")
    if not mode and not tier:
        return Settings()
    return make_settings(mode, tier or Tier.STRUCTURAL.value)


def make_settings(mode: str, tier: str) -> Settings:
    """Return settings from words.

    Raises:
        InvalidContract: If a word is unknown; the message lists the known ones.
    """
    return Settings(_word(Mode, mode, MODE_VARIABLE), _word(Tier, tier, TIER_VARIABLE))


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
