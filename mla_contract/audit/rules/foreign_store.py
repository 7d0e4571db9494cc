"""DRF004: an attribute set on a metadata object that its class does not declare."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.drift.declarations import declared_names
from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.model.backends import BUILDER
from mla_contract.audit.model.index import module_name
from mla_contract.audit.model.nodes import text_of, walk
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.project import Project

PAGE = Page(
    what=(
        "Code outside a metadata class sets an attribute on its instances that neither the class nor a base declares. "
        "Setting a declared field after construction is not reported."
    ),
    why=(
        "Only objects that went through that code have the attribute: a copy, dataclasses.replace, a second builder or "
        "graph capture loses it, no reader is checked by a type checker, and nobody sees it in the class."
    ),
    incident="vLLM 0.33.0: one CPU backend sets ten attributes on the shared decode and prefill records.",
    bad=(
        "metadata = super().build(common_prefix_len, common_attn_metadata)\n"
        "metadata.decode.req_pool_indices = indices\n"
    ),
    good=(
        "@dataclass\n"
        "class MyDecodeMetadata(MLACommonDecodeMetadata):\n"
        "    req_pool_indices: torch.Tensor | None = None\n"
    ),
)

_STORE = re.compile(rb"\n\s+\w*metadata\.(\w+)(?:: [^=\n]+)? = ")


def check(project: Project) -> Iterator[Finding]:
    """Report, once per class and attribute, the first place that sets it."""
    seen: set[tuple[str, str]] = set()
    for store in sorted(project.stores, key=lambda s: (s.function.module.path, s.node.lineno, s.node.col_offset)):
        key = (store.cls.qualname, store.attr)
        if key in seen or store.cls.has_attribute(store.attr) or store.cls.is_open or _is_own(store.node):
            continue
        seen.add(key)
        yield RULE.finding(
            store.function.module.path,
            store.node,
            f"{store.function.qualname.rpartition(':')[2]} sets {store.attr} on {store.cls.name}, "
            "which declares no such field",
            cls=store.cls.qualname,
            field=store.attr,
            reader=store.function.qualname,
            help=f"declare {store.attr} on a subclass of {store.cls.name} and construct that",
        )
    yield from _by_name(project, {(s.function.module.path, s.node.lineno) for s in project.stores})


def _by_name(project: Project, typed: set[tuple[str, int]]) -> Iterator[Finding]:
    """Report what a builder sets on something called metadata, where no class of the tree declares that name."""
    declared = declared_names(project)
    for path, file in project.index.tree.files.items():
        if BUILDER.encode() not in file.data:
            continue
        if all(match.group(1).decode("utf-8", "replace") in declared for match in _STORE.finditer(file.data)):
            continue
        module = project.index.get(module_name(path))
        seen: set[str] = set()
        for cls, target in _builder_stores(module.tree) if module is not None else ():
            if target.attr not in declared and target.attr not in seen and (path, target.lineno) not in typed:
                seen.add(target.attr)
                yield RULE.finding(
                    path,
                    target,
                    f"{cls.name} sets {target.attr} on {text_of(target.value)}; no class declares such a field",
                    field=target.attr,
                    help=f"declare {target.attr} on a metadata class, or return it beside the metadata",
                )


def _builder_stores(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, ast.Attribute]]:
    """Yield the attributes that methods of builders, those in functions included, set on something called metadata."""
    for cls in walk(tree):
        if isinstance(cls, ast.ClassDef) and any(BUILDER in text_of(base) for base in cls.bases):
            for node in walk(cls):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_metadata(node.value):
                    yield cls, node


def _is_metadata(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id.endswith("metadata")


def _is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


RULE = Rule("DRF004", "foreign-store", "drift", Severity.WARNING, PAGE, check)
