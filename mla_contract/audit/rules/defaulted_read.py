"""DRF002: a read of a contract field with a default, so that a missing field is not noticed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.drift.declarations import metadata_family
from mla_contract.audit.drift.read_places import ReadPlace, names, places
from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.model.backends import METADATA
from mla_contract.audit.model.index import Function, module_name
from mla_contract.audit.model.nodes import literal_text, text_of, walk
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.project import Project

PAGE = Page(
    what=(
        "getattr with a default, or hasattr, on MLA, indexer or batch metadata. A warning where none of the "
        "classes that get there has the field: the default always wins. Info where every class that gets there "
        "has it: the default never applies. Info, too, where the object has no type that the audit can follow and "
        "the name is that of a metadata field. No finding where some of the classes have the field and some do "
        "not: there the read is what tells them apart. Dropped fields of the input batch are DRF003."
    ),
    why=(
        "The default turns a renamed or forgotten field into a wrong number. None, 0 and -1 are values that the "
        "code after the read takes for an answer."
    ),
    incident="ATOM reads seq_lens_cpu, then _seq_lens_cpu, with defaults; vLLM 0.30 dropped both, and nothing raised.",
    bad="use_dense = getattr(attn_metadata.prefill, 'use_dense_mhq', False)\n",
    good="use_dense = attn_metadata.prefill.use_dense_mha\n",
)

_ARGUMENTS = {"getattr": 3, "hasattr": 2}
_READ = re.compile(rb"(?:getattr|hasattr)\(\s*[\w.\[\]]*metadata,\s*[\"'](\w+)[\"']")


def check(project: Project) -> Iterator[Finding]:
    """Report typed reads with a default, then those that only their names give away."""
    seen: set[tuple[str, int, int]] = set()
    for place in places(project, defaulted=True):
        read = place.read
        seen.add((read.function.module.path, read.node.lineno, read.node.col_offset))
        if read.batch and not place.having:
            continue
        if not place.stored and bool(place.having) != bool(place.lacking):
            yield _typed(place)
    yield from _untyped(project, seen)


def _typed(place: ReadPlace) -> Finding:
    read = place.read
    wins = not place.having
    classes = place.lacking or place.having
    count = "has" if len(classes) == 1 else "have"
    said = f"{names(classes)} {count} no such field, so the default always wins" if wins else (
        f"{names(classes)}, which {'gets' if len(classes) == 1 else 'get'} here, {count} it: the default never applies"
    )  # fmt: skip
    return RULE.finding(
        read.function.module.path,
        read.node,
        f"{read.path} is read with a default: {said}",
        severity=None if wins else Severity.INFO,
        cls=classes[0].qualname,
        field=read.path,
        reader=read.function.qualname,
        condition=read.condition,
        help="declare the field, or drop the read" if wins else "read the field; declare it where a class may lack it",
    )


def _untyped(project: Project, seen: set[tuple[str, int, int]]) -> Iterator[Finding]:
    """Report defaulted reads of things called metadata, in modules that name a metadata class."""
    family = metadata_family(project)
    fields = {name for cls in family for name, field in cls.own_fields.items() if field.kind == "declared"}
    classes = [cls.node.name.encode() for cls in family if cls.outer is None and cls.node.name != METADATA]
    for path, file in project.index.tree.files.items():
        if b"attr(" not in file.data or b"etadata," not in file.data:
            continue
        if not any(match.group(1).decode() in fields for match in _READ.finditer(file.data)):
            continue
        module = project.index.get(module_name(path)) if any(cls in file.data for cls in classes) else None
        for function in project.index.functions(module) if module is not None else ():
            for node in walk(function.node):
                attr = _metadata_getter(node)
                place = (path, getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
                if attr in fields and place not in seen:
                    seen.add(place)
                    yield _by_name(function, node, attr)


def _by_name(function: Function, node: ast.AST, attr: str) -> Finding:
    return RULE.finding(
        function.module.path,
        node,
        f"{attr}, a metadata field, is read with a default from an object without a type: {text_of(node)}",
        severity=Severity.INFO,
        field=attr,
        reader=function.qualname,
        help="narrow the object to a metadata type and read the field",
    )


def _metadata_getter(node: ast.AST) -> str:
    """Return the field that a getattr or hasattr asks something called metadata for, or nothing."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ARGUMENTS):
        return ""
    if len(node.args) != _ARGUMENTS[node.func.id]:
        return ""
    receiver = text_of(node.args[0]).rpartition(".")[2]
    return literal_text(node.args[1]) or "" if "metadata" in receiver else ""


RULE = Rule("DRF002", "defaulted-read", "drift", Severity.WARNING, PAGE, check)
