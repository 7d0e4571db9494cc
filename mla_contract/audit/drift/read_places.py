"""All reads of metadata that the engine saw, by place, with every class that gets there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mla_contract.audit.flow.events import Events, Read
    from mla_contract.audit.model.classes import ClassInfo
    from mla_contract.audit.project import Project


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """One read in the source, with the classes that are read there.

    Attributes:
        read: One of the reads.
        having: Classes that declare the attribute.
        stored: Classes that do not, and on whose instances code elsewhere sets it.
        lacking: Classes without it.
    """

    read: Read
    having: tuple[ClassInfo, ...]
    stored: tuple[ClassInfo, ...]
    lacking: tuple[ClassInfo, ...]


def all_reads(project: Project) -> Iterator[Read]:
    """Yield every read that the engine saw, of the layer, the builders and the consumers."""
    runs: list[Events] = [
        *project.layers.values(),
        *(run.events for run in project.builders.values()),
        project.consumers,
    ]
    for events in runs:
        yield from events.reads


def places(project: Project, *, defaulted: bool | None = None) -> list[ReadPlace]:
    """Return the reads by place.

    Args:
        project: The tree.
        defaulted: Only reads with a default, or only those without; None for all.
    """
    found: dict[tuple[str, int, int, str], tuple[Read, dict[ClassInfo, bool]]] = {}
    for read in all_reads(project):
        if defaulted is None or read.defaulted is defaulted:
            key = (read.function.module.path, read.node.lineno, read.node.col_offset, read.attr)
            found.setdefault(key, (read, {}))[1][read.holder] = read.missing
    return [_place(project, *found[key]) for key in sorted(found)]


def _place(project: Project, read: Read, holders: dict[ClassInfo, bool]) -> ReadPlace:
    groups: dict[str, list[ClassInfo]] = {"having": [], "stored": [], "lacking": []}
    for cls, missing in holders.items():
        stored = any((base, read.attr) in project.dynamic for base in cls.mro) and not cls.has_attribute(read.attr)
        groups["stored" if stored else "lacking" if missing else "having"].append(cls)
    return ReadPlace(read, **{name: tuple(classes) for name, classes in groups.items()})


def names(classes: tuple[ClassInfo, ...], limit: int = 3) -> str:
    """Return the names of classes as a list for a sentence."""
    shown = list(dict.fromkeys(cls.name for cls in classes))
    rest = len(shown) - limit
    return ", ".join(shown[:limit]) + (f" and {rest} more" if rest > 0 else "")
