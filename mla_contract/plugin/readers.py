"""Who reads a field: the places that the release's profile lists, so that a report names the line that would fail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypedDict, Unpack

from mla_contract.contract.structure.faults import CODE_OF
from mla_contract.contract.violation import Violation
from mla_contract.plugin.records import RecordKind
from mla_contract.profiles import load_reads

_INDEX = re.compile(r"\[[^\]]*\]")
_SHARED = "vllm/model_executor/layers/"
_NEEDS_PREFILLS = "num_mha_tokens > 0"
"""What the shared layer asks before it attends to prefills, as profiles write it."""
_ONLY_DCP = re.compile(r"self\.(impl\.)?dcp_world_size > 1")

_ASKS_CLASS = re.compile(r"isinstance\((?!\w+, dict\))")
"""A test for a class; one for a dict asks only whether the step has metadata at all."""


class StepReads(TypedDict):
    """What decides which reads a step reaches.

    Attributes:
        has_prefills: Whether the record has prefill requests.
        dcp_size: Ranks of decode context parallelism.
        impl: The classes of the backend's impl, its bases among them: other impls' methods read nothing here.
    """

    has_prefills: bool
    dcp_size: int
    impl: frozenset[str]


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
    return {key: _reader(first) for key, (first, *_) in _reads_of(minor).items()}


def _reader(read: Mapping[str, Any]) -> Reader:
    """Return one read of a profile."""
    return Reader(read["file"], read["line"], read["function"], read["condition"])


def name_readers(
    violations: Iterable[Violation], kind: RecordKind, minor: str, **step: Unpack[StepReads]
) -> tuple[Violation, ...]:
    """Return violations whose help names a reader of their field, and the release whose line it is.

    It is one that the step certainly reaches, where there is one, and none that it cannot reach. Arguments as for
    ``without_unread``.
    """
    reads, release = _reads_of(minor), load_reads(minor)["release"]
    named = []
    for violation in violations:
        every = reads.get((kind.value, field_of(violation)), ())
        places = [one for one in every if one["impl"] is None or one["impl"] in step["impl"]]
        if step["dcp_size"] <= 1:
            places = [one for one in places if not _needs_dcp(one["condition"] or "")]
        if not places:
            named.append(violation)
            continue
        reader = _reader(next((one for one in places if _is_certain(one, **step)), places[0]))
        text = f"read by {reader.function}, {reader.file}:{reader.line} of vLLM {release}"
        if reader.condition is not None:
            text += f" where {reader.condition}"
        named.append(replace(violation, help=f"{text}; {violation.help}" if violation.help else text))
    return tuple(named)


def without_unread(
    violations: Iterable[Violation], kind: RecordKind, minor: str, **step: Unpack[StepReads]
) -> tuple[Violation, ...]:
    """Leave out missing members that nothing certainly reads in this step: the record does not owe them.

    A read is certain where no capability of the configuration stands before it, no prefill is needed that the step does
    not have, and no class of its own is asked for. Later releases read more, earlier ones read others, and some fields
    only a backend's own code reads.

    Args:
        violations: What a check found.
        kind: What the record is for.
        minor: Minor release of the profile.
        **step: As ``StepReads`` says.
    """
    missing, reads = CODE_OF["missing"], _reads_of(minor)
    return tuple(
        one
        for one in violations
        if one.code != missing or any(_is_certain(read, **step) for read in reads.get((kind.value, field_of(one)), ()))
    )


def _needs_dcp(condition: str) -> bool:
    """Return whether a condition is never met on one rank: one of its parts asks for several."""
    return " or " not in condition and any(_ONLY_DCP.fullmatch(part) for part in condition.split(" and "))


def _is_certain(read: Mapping[str, Any], *, has_prefills: bool, dcp_size: int, impl: frozenset[str]) -> bool:
    """Return whether a step with these properties reaches a read, whatever the configuration."""
    condition, guard = read["condition"], read["guard"] or ""
    if read["impl"] is not None and read["impl"] not in impl:
        return False
    if condition is not None and not (dcp_size > 1 and _ONLY_DCP.fullmatch(condition)):
        return False
    return (has_prefills or _NEEDS_PREFILLS not in guard) and not _ASKS_CLASS.search(guard)


@cache
def _reads_of(minor: str) -> Mapping[tuple[str, str], tuple[Mapping[str, Any], ...]]:
    """Return every read of each (kind, field path) by a release's profile, the plainest first."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for read in sorted(load_reads(minor)["reads"], key=_rank):
        for kind in read["reached_by"]:
            found.setdefault((kind, read["path"]), []).append(read)
    return {key: tuple(reads) for key, reads in found.items()}


def field_of(violation: Violation) -> str:
    """Return the field path of a violation as profiles write it: without the class, items of lists as ``[]``."""
    return _INDEX.sub("[]", violation.path).partition(".")[2]


def _rank(read: Mapping[str, Any]) -> tuple[bool, bool, int, int]:
    """Return the order of reads: the shared layer, unconditional ones, the shortest guard, the first line."""
    guard = read["guard"] or ""
    return not read["file"].startswith(_SHARED), bool(read["condition"]), len(guard), read["line"]
