"""Profiles of vLLM releases, two JSON files per minor release; ``scripts/make_profiles.py`` writes them.

``reads/`` is what a running engine needs, to name the reader of a field; ``classes/`` is what only the audit asks for.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from mla_contract.errors import InvalidContract

PARTS = {
    "reads": ("reads",),
    "classes": ("backends", "classes", "functions", "signatures"),
}
"""Which parts of a profile each directory holds; ``schema`` and ``release`` stand in both."""

_PREFIX, _SUFFIX = "vllm-", ".json"


@cache
def known_minors() -> tuple[str, ...]:
    """Return the minor releases that ship a profile, oldest first."""
    names = (entry.name for entry in resources.files(__name__).joinpath("reads").iterdir())
    minors = [name[len(_PREFIX) : -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX)]
    return tuple(sorted(minors, key=lambda minor: [int(part) for part in minor.split(".")]))


def load_reads(minor: str) -> dict[str, Any]:
    """Return ``release`` and ``reads`` of a minor release, such as ``0.33``; a full version finds that of its minor.

    Raises:
        InvalidContract: No profile ships for it.
    """
    return _load("reads", minor)


def load_classes(minor: str) -> dict[str, Any]:
    """Return ``release``, ``backends``, ``classes``, ``functions`` and ``signatures`` of a minor release.

    Raises:
        InvalidContract: No profile ships for it.
    """
    return _load("classes", minor)


def load_profile(minor: str) -> dict[str, Any]:
    """Return the whole profile of a minor release, as ``mla-contract profile`` writes one.

    Raises:
        InvalidContract: No profile ships for it.
    """
    return load_reads(minor) | load_classes(minor)


@cache
def _load(part: str, minor: str) -> dict[str, Any]:
    wanted = ".".join(minor.split(".")[:2])
    if wanted not in known_minors():
        raise InvalidContract(f"no profile of vLLM {minor}: known are {', '.join(known_minors())}")
    text = resources.files(__name__).joinpath(part, f"{_PREFIX}{wanted}{_SUFFIX}").read_text(encoding="utf-8")
    profile: dict[str, Any] = json.loads(text)
    return profile
