"""Who reads a field: the places that the release's profile lists, so that a report names the line that would fail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from mla_contract.contract.structure.faults import CODE_OF
from mla_contract.contract.violation import Violation
from mla_contract.plugin.records import RecordKind
from mla_contract.profiles import load_reads

_INDEX = re.compile(r"\[[^\]]*\]")
_SHARED = "vllm/model_executor/layers/"


@dataclass(frozen=True, slots=True)
class Reader:
    """One read in vLLM's source.

    Attributes:
        file: Path inside the release.
        line: Line of the read.
        function: Function that reads.
        condition: Configuration under which it reads; None when it always does.
    """

    file: str
    line: int
    function: str
    condition: str | None = None


@cache
def readers_of(minor: str) -> Mapping[tuple[str, str], Reader]:
    """Return the first reader of each (kind, field path) by a release's profile: shared code first, then unguarded."""
    found: dict[tuple[str, str], Reader] = {}
    for read in sorted(load_reads(minor)["reads"], key=_rank):
        for kind in read["reached_by"]:
            found.setdefault(
                (kind, read["path"]), Reader(read["file"], read["line"], read["function"], read["condition"])
            )
    return found


def name_readers(violations: Iterable[Violation], kind: RecordKind, minor: str) -> tuple[Violation, ...]:
    """Return violations whose help names the reader of their field, and the release whose line it is."""
    readers, release = readers_of(minor), load_reads(minor)["release"]
    named = []
    for violation in violations:
        reader = readers.get((kind.value, field_of(violation)))
        if reader is None:
            named.append(violation)
            continue
        text = f"read by {reader.function}, {reader.file}:{reader.line} of vLLM {release}"
        if reader.condition is not None:
            text += f" where {reader.condition}"
        named.append(replace(violation, help=f"{text}; {violation.help}" if violation.help else text))
    return tuple(named)


def without_unread(violations: Iterable[Violation], kind: RecordKind, minor: str) -> tuple[Violation, ...]:
    """Leave out missing members that nothing in a release reads of this kind of record: its classes do not owe them.

    Later releases read more, earlier ones read others, and some fields only a backend's own code reads.
    """
    read = readers_of(minor)
    missing = CODE_OF["missing"]
    return tuple(one for one in violations if one.code != missing or (kind.value, field_of(one)) in read)


def field_of(violation: Violation) -> str:
    """Return the field path of a violation as profiles write it: without the class, items of lists as ``[]``."""
    return _INDEX.sub("[]", violation.path).partition(".")[2]


def _rank(read: Mapping[str, Any]) -> tuple[bool, bool, int, int]:
    """Return the order of reads: the shared layer, unconditional ones, the shortest guard, the first line."""
    guard = read["guard"] or ""
    return not read["file"].startswith(_SHARED), bool(read["condition"]), len(guard), read["line"]
