"""REQ003: a method of a builder or impl whose signature the release's base class no longer has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.model.backends import BUILDER, MLA_IMPLS
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.module import FunctionNode
from mla_contract.audit.model.nodes import text_of
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.project import Project

PAGE = Page(
    what=(
        "A builder or impl overrides a method that the engine calls through the base class, and the override cannot "
        "take the call: a parameter of the base is gone or renamed, or the override demands one that the base has not."
    ),
    why="The engine calls with the base's signature: a TypeError at the first step, or an argument bound elsewhere.",
    incident="vllm-ascend#200: build() lost and gained arguments between releases, and the plugin's did not follow.",
    bad=(
        "class MyBuilder(AttentionMetadataBuilder[MyMLAMetadata]):\n"
        "    def build(self, common_attn_metadata):\n"
        "        ...\n"
    ),
    good=(
        "class MyBuilder(AttentionMetadataBuilder[MyMLAMetadata]):\n"
        "    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):\n"
        "        ...\n"
    ),
)
ROOTS = frozenset({BUILDER, *MLA_IMPLS})


def check(project: Project) -> Iterator[Finding]:
    """Compare overrides with the nearest definition in the extension point classes."""
    seen: set[str] = set()
    reported: set[FunctionNode] = set()
    for backend in (*project.mla_backends, *project.indexer_backends):
        for cls in (backend.builder, backend.impl):
            if cls is None or cls.qualname in seen:
                continue
            seen.add(cls.qualname)
            yield from _class_findings(cls, reported)


def _class_findings(cls: ClassInfo, reported: set[FunctionNode]) -> Iterator[Finding]:
    for name in sorted({name for info in cls.mro for name in info.methods} - {"__init__", "__new__"}):
        found = cls.find_method(name)
        root = next(((c, c.methods[name]) for c in cls.mro if c.node.name in ROOTS and name in c.methods), None)
        if found is None or root is None or found[0].node.name in ROOTS or name.startswith("_"):
            continue
        problem = _incompatible(found[1], root[1])
        if problem and found[1] not in reported:
            reported.add(found[1])
            yield RULE.finding(
                found[0].module.path,
                found[1],
                f"{found[0].node.name}.{name} cannot take the calls of {root[0].node.name}.{name}: {problem}",
                cls=found[0].qualname,
                field=name,
                help=f"follow {root[0].module.path}:{root[1].lineno}: {name}({text_of(root[1].args)})",
            )


def _incompatible(override: FunctionNode, base: FunctionNode) -> str | None:
    """Return why an override cannot take every call that the base's signature allows, or None."""
    ours, theirs = override.args, base.args
    if ours.vararg is not None and ours.kwarg is not None:
        return None
    our_names = [a.arg for a in [*ours.posonlyargs, *ours.args]]
    their_names = [a.arg for a in [*theirs.posonlyargs, *theirs.args]]
    their_required = len(their_names) - len(theirs.defaults)
    our_required = len(our_names) - len(ours.defaults)
    known = {n.lstrip("_") for n in our_names} | {a.arg for a in ours.kwonlyargs}
    for position, name in enumerate(their_names[1:], start=1):
        if name not in known and ours.kwarg is None:
            if position < len(our_names) and position < their_required:
                return f"parameter {name!r} of the base is {our_names[position]!r} here"
            return f"parameter {name!r} of the base is missing"
    for position, name in enumerate(our_names[1:our_required], start=1):
        if position >= len(their_names) or position >= their_required and name not in their_names:
            return f"required parameter {name!r} is unknown to the base"
    for argument, default in zip(ours.kwonlyargs, ours.kw_defaults, strict=True):
        if default is None and argument.arg not in {*their_names, *(a.arg for a in theirs.kwonlyargs)}:
            return f"required parameter {argument.arg!r} is unknown to the base"
    return None


RULE = Rule("REQ003", "override-signature", "required", Severity.WARNING, PAGE, check)
