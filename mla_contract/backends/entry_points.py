"""What packages register with this one under a name. Imports nothing heavy: vLLM may ask in every process.

A source tree answers for this package's own entries: an editable installation keeps those of the day it was made, and a
tree that is only on the path has none.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mla_contract

DISTRIBUTION = "mla-contract"


@dataclass(frozen=True, slots=True)
class Registration:
    """One entry point.

    Attributes:
        name: What it is registered as.
        value: Where it leads, as ``module:attribute``.
        distribution: Name and version of the package that registers it.
        is_own: Whether that package is this one.
    """

    name: str
    value: str
    distribution: str
    is_own: bool = False


@cache
def registrations(group: str) -> Mapping[str, tuple[Registration, ...]]:
    """Return who registered each name of a group: this package's names first, then the others', each in order.

    Read once: installing a package does not change a running process.
    """
    own = _tree_registrations(group)
    found = [] if own is None else list(own)
    for entry in entry_points(group=group):
        one = _registration(entry)
        if own is None or not one.is_own:
            found.append(one)
    by_name: dict[str, tuple[Registration, ...]] = {}
    for one in sorted(found, key=lambda one: (not one.is_own, one.name)):
        by_name[one.name] = (*by_name.get(one.name, ()), one)
    return MappingProxyType(by_name)


def load_registered(group: str, name: str) -> Any | str:
    """Return what a name leads to, or why it cannot be had."""
    known = registrations(group)
    if name not in known:
        return f"nothing is registered under this name; known are {', '.join(known) or 'none'}"
    first, *more = known[name]
    if more:
        claims = " and ".join(f"{one.distribution} ({one.value})" for one in (first, *more))
        return f"the name is taken twice: by {claims}; uninstall one of them"
    return load_value(first.value)


def load_value(value: str) -> Any | str:
    """Return what ``module:attribute`` names, or why it cannot be had."""
    module, _, attribute = value.partition(":")
    if not module or not attribute:
        return f"{value!r}: expected module:attribute"
    try:
        found: Any = import_module(module)
    except Exception as error:  # noqa: BLE001 - the module is foreign: whatever it raises is why it cannot be imported
        return f"{module} cannot be imported: {type(error).__name__}: {error}"
    for part in attribute.split("."):
        if not hasattr(found, part):
            return f"{module} has no {attribute}"
        found = getattr(found, part)
    return found


def _registration(entry: EntryPoint) -> Registration:
    """Return an installed entry point as a registration."""
    dist = entry.dist
    if dist is None:
        return Registration(entry.name, entry.value, "an unknown package")
    is_own = re.sub(r"[-_.]+", "-", dist.name).lower() == DISTRIBUTION
    return Registration(entry.name, entry.value, f"{dist.name} {dist.version}", is_own)


def _tree_registrations(group: str) -> Sequence[Registration] | None:
    """Return this package's entries as its source tree states them; None where there is no such tree."""
    project = _tree_project(Path(str(mla_contract.__file__)).parents[1])
    if project is None:
        return None
    distribution = f"{DISTRIBUTION} {mla_contract.__version__} (source tree)"
    stated: Mapping[str, str] = project.get("entry-points", {}).get(group, {})
    return [Registration(name, value, distribution, is_own=True) for name, value in stated.items()]


def _tree_project(folder: Path) -> Mapping[str, Any] | None:
    """Return the project table of this package's tree; None where the folder is something else."""
    try:
        project: Mapping[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return None
    # Careless packages leave their pyproject.toml in site-packages, beside ours.
    return project if project.get("name") == DISTRIBUTION else None
