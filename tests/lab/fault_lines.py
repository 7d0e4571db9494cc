"""Tables of faults made by hand: one line for each fault, and the lines that many fields have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mla_contract.contract.step.context import StepContext
from tests.lab.changes import cut, grow, poke, read_path, shift
from tests.lab.faults import Change, PlantedFault
from tests.lab.field_faults import declaring_class

Maker = Callable[[], StepContext]
Line = tuple[str, str, Change, str] | tuple[str, str, Change, str, str]
"""Kind, path from the subject, change, codes; and further paths that a report may name."""


def planted(base: str, make: Maker, lines: tuple[Line, ...]) -> Iterator[PlantedFault]:
    """Yield the faults of one table; the path of a fault is written as reports write it."""
    made = make()
    roots = {"batch": type(made.batch).__name__, "metadata": type(made.metadata).__name__}
    for kind, path, change, codes, *also in lines:
        yield PlantedFault(
            kind,
            base,
            _owner(made, path),
            _text(path, roots),
            tuple(codes.split()),
            make,
            change,
            also=tuple(_text(other, roots) for other in " ".join(also).split()),
        )


def _text(path: str, roots: dict[str, str]) -> str:
    """Return a path with the class of its root, and list indexes in brackets."""
    first, *rest = path.split(".")
    return roots.get(first, first) + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in rest)


def _owner(subject: StepContext, path: str) -> str:
    parents, _, name = path.rpartition(".")
    return declaring_class(type(read_path(subject, parents)), name) if parents else path


def shifts(path: str, up: str, down: str, also: str = "") -> tuple[Line, Line]:
    """Return the two faults of a count that is one too large, and one too small."""
    return ("one too many", path, shift(path, 1), up, also), ("one too few", path, shift(path, -1), down, also)


def rows(path: str, codes: str, also: str = "") -> tuple[Line, Line]:
    """Return the two faults of an array with a row less, and a row more."""
    return ("row too few", path, cut(path), codes, also), ("row too many", path, grow(path), codes, also)


def elements(path: str, index: Any, codes: str, also: str = "") -> tuple[Line, Line]:
    """Return the two faults of one element that is one too large, and one too small."""
    larger, smaller = poke(path, index, lambda old: old + 1), poke(path, index, lambda old: old - 1)
    return ("element too large", path, larger, codes, also), ("element too small", path, smaller, codes, also)
