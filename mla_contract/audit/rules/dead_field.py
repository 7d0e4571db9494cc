"""DRF005: a field of a metadata class that nothing in the tree reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.drift.declarations import declared_names, metadata_family
from mla_contract.audit.drift.field_readers import Readers
from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.model.nodes import text_of
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.project import Project

PAGE = Page(
    what=(
        "A metadata class declares a field, and nothing in the tree reads it: no read that the engine followed, "
        "no attribute of that name in the files that name the class, one of its relatives, its builder or its "
        "backend. Where no other class has a field of that name, a read in any file counts. Writing a field is not "
        "reading it."
    ),
    why=(
        "The builder computes it for nobody at every step, and the next author takes it for part of the contract: "
        "a fork that fills it with care gains nothing."
    ),
    incident="vLLM 0.33.0: SparseMLACommonMetadata.decode_max_query_len is declared and filled, and read nowhere.",
    bad=(
        "@dataclass\n"
        "class MyMLAMetadata(AttentionMetadata):\n"
        "    num_actual_tokens: int\n"
        "    decode_query_len: int = 0  # read nowhere\n"
    ),
    good="@dataclass\nclass MyMLAMetadata(AttentionMetadata):\n    num_actual_tokens: int\n",
)


def check(project: Project) -> Iterator[Finding]:
    """Report every field without a reader at its declaration."""
    readers = Readers(project)
    declared = declared_names(project)
    family = metadata_family(project)
    for cls in family:
        if not cls.is_dataclass:
            continue
        relatives = [c for c in family if c.is_subclass_of(cls) or cls.is_subclass_of(c)]
        for field in cls.own_fields.values():
            if field.kind != "declared" or field.annotation is None or "ClassVar" in text_of(field.annotation):
                continue
            others = declared.get(field.name, set()) - {c.qualname for c in relatives}
            if not readers.has_reader(field.name, relatives, anywhere=not others):
                yield RULE.finding(
                    cls.module.path,
                    field.node,
                    f"nothing reads {cls.name}.{field.name}",
                    cls=cls.qualname,
                    field=field.name,
                    help="drop the field and what fills it, or allow it with the reader outside the tree as the reason",
                )


RULE = Rule("DRF005", "dead-field", "drift", Severity.INFO, PAGE, check)
