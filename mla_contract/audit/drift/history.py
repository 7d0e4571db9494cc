"""What the shipped profiles know of earlier releases: which fields a class had, and whose function a hash is."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

_PROFILES = "mla_contract.profiles"


@cache
def shipped_profiles() -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return the profiles in the package with their minor releases, oldest first; none where none is shipped."""
    found: list[tuple[str, dict[str, Any]]] = []
    try:
        files = list(resources.files(_PROFILES).iterdir())
    except (ModuleNotFoundError, OSError):
        return ()
    for file in files:
        if file.name.startswith("vllm-") and file.name.endswith(".json"):
            found.append((file.name.removeprefix("vllm-").removesuffix(".json"), json.loads(file.read_text("utf-8"))))
    return tuple(sorted(found, key=lambda item: _order(item[0])))


def releases_of_function(name: str, digest: str) -> str | None:
    """Return the releases whose shared function of a name has a hash, as ``0.26 to 0.30``, or None."""
    found = [
        minor
        for minor, profile in shipped_profiles()
        if any(_plain(known) == _plain(name) and d == digest for known, d in profile.get("functions", {}).items())
    ]
    if not found:
        return None
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def last_release_with(cls: str, field: str) -> str | None:
    """Return the last release whose class of a simple name had a field, or None where none is known to have had it."""
    found = None
    for minor, profile in shipped_profiles():
        for qualname, known in profile.get("classes", {}).items():
            if qualname.rpartition(".")[2] == cls and (field in known["fields"] or field in known.get("inherited", {})):
                found = minor
    return found


def _plain(qualname: str) -> str:
    return qualname.rpartition(":")[2].rpartition(".")[2].lstrip("_")


def _order(minor: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in minor.split("."))
