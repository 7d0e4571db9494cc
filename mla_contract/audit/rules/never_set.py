"""REQ002: a field with a default that the shared layer reads and the backend's builder never sets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.model.nodes import text_of
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.flow.events import Read
    from mla_contract.audit.model.backends import Backend
    from mla_contract.audit.project import Project

PAGE = Page(
    what=(
        "A metadata class declares or inherits a field with a default of None, 0 or False, the shared layer or the "
        "impl reads it, and the builder neither passes it to the constructor nor sets it afterwards."
    ),
    why="Every batch then looks as if it had no prefill, no decode tokens, no context: the fault is silent.",
    incident="vLLM 0.27.0: the ROCm sparse metadata gained prefill and prefill_max_seq_len; its builder set neither.",
    bad=(
        "@dataclass\n"
        "class MyMLAMetadata(AttentionMetadata):\n"
        "    num_actual_tokens: int\n"
        "    num_decode_tokens: int = 0\n\n"
        "class MyBuilder(AttentionMetadataBuilder[MyMLAMetadata]):\n"
        "    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):\n"
        "        return MyMLAMetadata(num_actual_tokens=common_attn_metadata.num_actual_tokens)\n"
    ),
    good=(
        "        return MyMLAMetadata(\n"
        "            num_actual_tokens=common_attn_metadata.num_actual_tokens,\n"
        "            num_decode_tokens=num_decode_tokens,\n"
        "        )\n"
    ),
)


def check(project: Project) -> Iterator[Finding]:
    """Report, per metadata class, every read field that no construction in the builder is given."""
    seen: set[tuple[str, str]] = set()
    for backend in project.mla_backends:
        run = project.builders[backend]
        if run.function is None or not run.complete:
            continue
        constructs = run.constructs(backend.metadata.cls)
        for attr, read in _first_reads(project, backend).items():
            field = backend.metadata.cls.fields.get(attr)
            if field is None or attr in run.given or not _is_silent_default(field.default):
                continue
            if (backend.metadata.cls, attr) in project.dynamic:
                continue
            key = (backend.metadata.cls.qualname, attr)
            if key in seen:
                continue
            seen.add(key)
            construct = constructs[0]
            default = text_of(field.default) if field.default is not None else "None"
            reader = read.function.qualname.rpartition(":")[2]
            yield RULE.finding(
                construct.function.module.path,
                construct.node,
                f"{backend.metadata.cls.node.name}.{attr} keeps its default {default}: "
                f"{construct.function.qualname.rpartition(':')[2]} never sets it, and {reader} reads it",
                cls=backend.metadata.cls.qualname,
                field=attr,
                reader=read.function.qualname,
                guard=" and ".join(dict.fromkeys(g.text for g in read.guards)) or None,
                condition=read.condition,
                help=f"pass {attr}= here, or drop the field where this backend can do without it",
            )


def _first_reads(project: Project, backend: Backend) -> dict[str, Read]:
    """Return, for each field of the metadata itself, the read with the fewest conditions."""
    found: dict[str, Read] = {}
    for read in project.layer_reads(backend):
        if (
            read.path != read.attr
            or read.missing
            or read.defaulted
            or not backend.metadata.cls.is_subclass_of(read.holder)
        ):
            continue
        known = found.get(read.attr)
        if known is None or (known.condition and not read.condition):
            found[read.attr] = read
    return found


def _is_silent_default(default: ast.expr | None) -> bool:
    if isinstance(default, ast.Constant):
        return default.value is None or default.value is False or default.value == 0
    if isinstance(default, ast.Call):
        return any(k.arg == "default" and _is_silent_default(k.value) for k in default.keywords)
    return False


RULE = Rule("REQ002", "never-set-field", "required", Severity.WARNING, PAGE, check)
