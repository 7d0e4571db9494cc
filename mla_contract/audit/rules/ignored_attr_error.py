"""TYP001: a read of metadata on a line where the type checker is told not to look."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.drift.read_places import ReadPlace, names, places
from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.project import Project

PAGE = Page(
    what="A line reads a field of MLA, indexer or batch metadata and carries `type: ignore[attr-defined]`.",
    why=(
        "The comment is there because the declared type has no such field. It also silences the day when no class has "
        "it any more, for every field of that line."
    ),
    incident="vLLM 0.26.0 read prefill_max_seq_len under such a comment; two backends had no such field.",
    bad="limit = attn_metadata.prefill_max_seq_len  # type: ignore[attr-defined]\n",
    good="sparse = narrow(attn_metadata, SparseMLAMetadata)\nlimit = sparse.prefill_max_seq_len\n",
)

_IGNORE = re.compile(r"#\s*type:\s*ignore\[[^\]]*\battr-defined\b")


def check(project: Project) -> Iterator[Finding]:
    """Report the reads of every such line that the type checker would object to.

    A line that sets an undeclared attribute has its comment for that.
    """
    lines: dict[tuple[str, int], list[ReadPlace]] = {}
    for place in places(project, defaulted=False):
        module, node = place.read.function.module, place.read.node
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            if _IGNORE.search(module.lines[number - 1]):
                lines.setdefault((module.path, number), []).append(place)
                break
    stores = {(s.function.module.path, s.node.lineno) for s in project.stores if not s.cls.has_attribute(s.attr)}
    for key, found in lines.items():
        if key not in stores:
            yield from map(_finding, _culprits(found))


def _culprits(found: list[ReadPlace]) -> list[ReadPlace]:
    """Return the reads of a line that some class does not answer; where all do, the one that ends the longest path."""
    unanswered = [p for p in found if p.lacking or p.stored]
    chosen = unanswered or [max(found, key=lambda p: (p.read.path.count("."), p.read.node.col_offset))]
    return list({p.read.path: p for p in reversed(chosen)}.values())[::-1]


def _finding(place: ReadPlace) -> Finding:
    read = place.read
    cls = (place.lacking or place.stored or place.having)[0]
    return RULE.finding(
        read.function.module.path,
        read.node,
        f"{read.path} is read past the type checker: {_who(place)}",
        cls=cls.qualname,
        field=read.path,
        reader=read.function.qualname,
        condition=read.condition,
        help="narrow the object to a type that declares the field, and drop the comment",
    )


def _who(place: ReadPlace) -> str:
    absent = place.lacking + place.stored
    if not absent:
        return f"{names(place.having)} {'has' if len(place.having) == 1 else 'have'} it, the declared type does not"
    text = f"{names(absent)} {'does' if len(absent) == 1 else 'do'} not declare it"
    if place.stored and not place.having:
        text += ", it is set from outside"
    return f"{text}, {names(place.having)} {'does' if len(place.having) == 1 else 'do'}" if place.having else text


RULE = Rule("TYP001", "ignored-attr-error", "typing", Severity.WARNING, PAGE, check)
