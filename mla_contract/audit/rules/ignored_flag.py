"""POL001: a flag on metadata that one consumer honours and another, doing the same work, never reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.flow.conditions import is_metadata_class
from mla_contract.audit.flow.values import Const
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.types import read_annotation
from mla_contract.audit.policy.flags import Consumer, MetadataCall, varying_arguments
from mla_contract.audit.policy.platform_pairs import early_exits, mentions_attribute, platform_pairs
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.flow.events import Read
    from mla_contract.audit.project import Project

PAGE = Page(
    what=(
        "A metadata class has a boolean field that a builder sets to something that varies, one consumer of the class "
        "tests it before a call, and another consumer makes the same call on the same objects and never reads it. Two "
        "calls are the same where their names share most of their words and they get an attribute of the object in "
        "common. A consumer that does the work another way is not concerned. Where a class dispatches to one function "
        "a platform, and one of them returns early by such a flag of any metadata while the other never mentions it, "
        "that is reported as information: the work is done for nothing."
    ),
    why=(
        "The builder decides once what every consumer has to do. Where one platform ignores the decision it repeats "
        "work, or overwrites what the builder meant it to keep, and the two platforms drift apart unseen."
    ),
    incident=(
        "vLLM 0.26.0 to 0.33.0: the CUDA indexer skips the gather of a chunk that continues the one before "
        "(skip_kv_gather), the ROCm indexer gathers it again."
    ),
    bad=(
        "def indexer_on_one_platform(metadata: MyIndexerMetadata):\n"
        "    for chunk in metadata.chunks:\n"
        "        if not chunk.skip_gather:\n"
        "            gather_cache(cache, chunk.block_table)\n\n"
        "def indexer_on_another(metadata: MyIndexerMetadata):\n"
        "    for chunk in metadata.chunks:\n"
        "        gather_cache_triton(cache, chunk.block_table)\n"
    ),
    good=(
        "def indexer_on_another(metadata: MyIndexerMetadata):\n"
        "    for chunk in metadata.chunks:\n"
        "        if not chunk.skip_gather:\n"
        "            gather_cache_triton(cache, chunk.block_table)\n"
    ),
)


def check(project: Project) -> Iterator[Finding]:
    """Report the first call of the same work in every consumer that does not read the flag."""
    flags = _flags(project)
    by_class: dict[ClassInfo, list[Read]] = {}
    for read in project.consumers.reads:
        if read.holder in flags and not read.batch:
            by_class.setdefault(read.holder, []).append(read)
    for cls in sorted(by_class, key=lambda c: c.qualname):
        consumers = _consumers(by_class[cls])
        for flag in sorted(flags[cls]):
            yield from _ignored(cls, flag, consumers)
    yield from _unsaved(project, flags, {cls: _consumers(reads) for cls, reads in by_class.items()})


def _ignored(cls: ClassInfo, flag: str, consumers: list[Consumer]) -> Iterator[Finding]:
    honoured: list[tuple[Consumer, Read, list[MetadataCall]]] = []
    for consumer in consumers:
        if flag in consumer.attrs and (calls := consumer.guarded(flag)):
            read = next(r for r in consumer.reads if r.attr == flag)
            honoured.append((consumer, read, calls))
    for consumer in consumers if honoured else ():
        if flag in consumer.attrs:
            continue
        for call in consumer.calls([consumer.function.node]):
            match = next((h for h in honoured if any(call.is_like(other) for other in h[2])), None)
            if match is not None:
                yield _finding(cls, flag, consumer, call, match[0], match[1])
                break


def _unsaved(
    project: Project, flags: dict[ClassInfo, set[str]], consumers: dict[ClassInfo, list[Consumer]]
) -> Iterator[Finding]:
    """Report the functions that do work from which their twin on another platform returns early by a flag."""
    owners = {name: cls for cls in sorted(flags, key=lambda c: c.qualname) for name in flags[cls]}
    everyone = {c.function.qualname: c for group in consumers.values() for c in group}
    pairs = platform_pairs(project.index, [c.function for c in everyone.values()])
    exits = {a: list(early_exits(everyone[a].function, frozenset(owners))) for a, _ in pairs}
    seen: set[tuple[str, str]] = set()
    for group in consumers.values():
        for own, other in ((a, b) for a in group for b in group if (a.function.qualname, b.function.qualname) in pairs):
            for flag, test in exits[other.function.qualname]:
                later = [w for w in other.calls([other.function.node]) if w.node.lineno > (test.end_lineno or 0)]
                calls = [w for w in own.calls([own.function.node]) if any(w.is_like(o) for o in later)]
                key = (own.function.qualname, flag)
                if calls and key not in seen and not mentions_attribute(own.function, flag):
                    seen.add(key)
                    yield _unsaved_finding(owners[flag], flag, own, calls[0], other, test)


def _unsaved_finding(
    cls: ClassInfo, flag: str, own: Consumer, call: MetadataCall, other: Consumer, test: ast.If
) -> Finding:
    mine, theirs = (c.function.qualname.rpartition(":")[2] for c in (own, other))
    return RULE.finding(
        own.function.module.path,
        own.function.node,
        f"{mine} never reads {cls.node.name}.{flag}; its twin {theirs} returns by it before {call.name} and the rest "
        f"({other.function.module.path}:{test.lineno})",
        severity=Severity.INFO,
        cls=cls.qualname,
        field=flag,
        reader=other.function.qualname,
        help=f"return early here too where {flag} says that nothing reads the result",
    )


def _finding(
    cls: ClassInfo, flag: str, consumer: Consumer, call: MetadataCall, honouring: Consumer, read: Read
) -> Finding:
    name = honouring.function.qualname.rpartition(":")[2]
    where = f"{honouring.function.module.path}:{read.node.lineno}"
    own = consumer.function.qualname.rpartition(":")[2]
    return RULE.finding(
        consumer.function.module.path,
        call.node,
        f"{own} calls {call.name} whatever {cls.node.name}.{flag} says; {name} honours it ({where})",
        cls=cls.qualname,
        field=flag,
        reader=honouring.function.qualname,
        help=(
            f"test {flag} before this call, and see to it that what the call fills outlives one turn of the loop; "
            "or do not set the flag for this consumer"
        ),
    )


def _consumers(reads: list[Read]) -> list[Consumer]:
    """Return the functions that read a class, each with its own reads, by place."""
    grouped: dict[tuple[str, int], dict[int, Read]] = {}
    for read in reads:
        key = (read.function.module.path, read.function.node.lineno)
        grouped.setdefault(key, {}).setdefault(id(read.node), read)
    return [Consumer(next(iter(group.values())).function, group.values()) for _, group in sorted(grouped.items())]


def _flags(project: Project) -> dict[ClassInfo, set[str]]:
    """Return, for each class, its boolean fields that some construction or store gives a varying value."""
    events = [project.consumers, *(run.events for run in project.builders.values())]
    given = [(c.cls, name, value) for e in events for c in e.constructs for name, value in c.values]
    given += [(s.cls, s.attr, s.value) for s in project.stores]
    found: dict[ClassInfo, set[str]] = {}
    for cls in {read.holder for read in project.consumers.reads}:
        if not is_metadata_class(cls) and (flags := {name for name in cls.fields if _is_bool(cls, name)}):
            found[cls] = varying_arguments(project.index, cls, flags)
    for cls, name, value in given:
        if name in cls.fields and not isinstance(value, Const) and _is_bool(cls, name):
            found.setdefault(cls, set()).add(name)
    return found


def _is_bool(cls: ClassInfo, name: str) -> bool:
    field = cls.fields[name]
    return read_annotation(field.annotation, field.owner.module, field.owner).scalar == "bool"


RULE = Rule("POL001", "ignored-flag", "policy", Severity.WARNING, PAGE, check)
