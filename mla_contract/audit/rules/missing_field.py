"""REQ001: a field that the shared layer reads and a backend's metadata does not have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.flow.runs import unguarded_first
from mla_contract.audit.model.types import part_classes
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.flow.events import Read
    from mla_contract.audit.model.backends import Backend
    from mla_contract.audit.model.classes import ClassInfo
    from mla_contract.audit.project import Project

PAGE = Page(
    what=(
        "A function reads an attribute of a metadata object, and the class that a backend's builder returns has no "
        "such attribute: none declared or inherited, none assigned, none set from outside. Reads that the backend "
        "cannot reach are left out: the guards on the way are evaluated with the backend's own classes, constants "
        "and builder. A read that takes a capability to be configured (context parallelism, a dense prefill backend, "
        "fused output quantisation) is a warning that names the condition."
    ),
    why="The first batch that gets there ends in an AttributeError, on a machine that the reader's author has not.",
    incident="vllm#50064: no DeepSeek-sparse model started on MI300X: the layer read num_decode_tokens; vllm#52066.",
    bad=(
        "class MLAAttention:\n"
        "    def forward_impl(self, q, attn_metadata):\n"
        "        return q[: attn_metadata.num_decode_tokens]\n\n"
        "@dataclass\n"
        "class MyMLAMetadata(AttentionMetadata):\n"
        "    num_actual_tokens: int\n"
    ),
    good=(
        "@dataclass\nclass MyMLAMetadata(AttentionMetadata):\n    num_actual_tokens: int\n    num_decode_tokens: int\n"
    ),
)


def check(project: Project) -> Iterator[Finding]:
    """Report every read that finds no attribute, once per place and class."""
    by_place: dict[tuple[str, int, int, str, str], tuple[Read, list[str]]] = {}
    for backend, read in (*project.missing_reads(), *_indexer_reads(project)):
        key = (read.function.module.path, read.node.lineno, read.node.col_offset, read.holder.qualname, read.attr)
        known, names = by_place.setdefault(key, (read, []))
        if (read.condition or "") < (known.condition or "") or (read.condition is None and known.condition):
            by_place[key] = (read, names)
        names.append(backend.cls.node.name)
    for key in sorted(by_place):
        read, names = by_place[key]
        yield _finding(read, names)


def _indexer_reads(project: Project) -> Iterator[tuple[Backend, Read]]:
    """Yield the reads of indexer metadata and its parts that find no attribute, each with a backend that builds it."""
    builders: dict[ClassInfo, list[Backend]] = {}
    for backend in project.indexer_backends:
        for cls in part_classes(backend.metadata.cls):
            builders.setdefault(cls, []).append(backend)
    for read in unguarded_first([r for r in project.consumers.reads if not r.batch and r.holder in builders]):
        if project.is_missing(read):
            for backend in builders[read.holder]:
                yield backend, read


def _finding(read: Read, backends: list[str]) -> Finding:
    condition = read.condition
    name = read.holder.node.name
    where = "" if read.path == read.attr else f" (read as {read.path})"
    reader = read.function.qualname.rpartition(":")[2]
    tail = f"; only where {condition}" if condition else ""
    users = ", ".join(dict.fromkeys(backends))
    return RULE.finding(
        read.function.module.path,
        read.node,
        f"{name} has no field {read.attr}{where}, which {reader} reads for {users}{tail}",
        severity=Severity.WARNING if condition else None,
        cls=read.holder.qualname,
        field=read.attr,
        reader=read.function.qualname,
        guard=" and ".join(dict.fromkeys(g.text for g in read.guards)) or None,
        condition=condition,
        help=f"declare {read.attr} on {name} ({read.holder.module.path}:{read.holder.node.lineno}) and set it there",
    )


RULE = Rule("REQ001", "missing-field", "required", Severity.ERROR, PAGE, check)
