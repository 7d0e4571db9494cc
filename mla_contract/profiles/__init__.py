"""Profiles of vLLM releases, one JSON file per minor release; ``scripts/make_profiles.py`` writes them."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from mla_contract.errors import InvalidContract

PREFIX = "vllm-"


def known_minors() -> tuple[str, ...]:
    """Return the minor releases that ship a profile, oldest first."""
    names = (entry.name for entry in resources.files(__name__).iterdir())
    minors = [name.removeprefix(PREFIX).removesuffix(".json") for name in names if name.endswith(".json")]
    return tuple(sorted(minors, key=_order))


@cache
def load_profile(minor: str) -> dict[str, Any]:
    """Return the profile of a minor release, such as ``0.33``; a full version finds that of its minor.

    Raises:
        InvalidContract: No profile ships for it.
    """
    wanted = ".".join(minor.split(".")[:2])
    if wanted not in known_minors():
        raise InvalidContract(f"no profile of vLLM {minor}: known are {', '.join(known_minors())}")
    text = resources.files(__name__).joinpath(f"{PREFIX}{wanted}.json").read_text(encoding="utf-8")
    profile: dict[str, Any] = json.loads(text)
    return profile


def _order(minor: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else -1 for part in minor.split("."))
