"""Which classes of a tree declare a name as a field: what tells a field of one class from a common word."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.model.backends import CANDIDATE_WORDS
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.module import Module
from mla_contract.audit.model.types import DeclaredType, read_annotation

if TYPE_CHECKING:
    from mla_contract.audit.project import Project


def backend_modules(project: Project) -> tuple[Module, ...]:
    """Return the modules that the engine looks for backends in."""
    return project.index.containing(*CANDIDATE_WORDS, also=b"Backend")


def declared_names(project: Project) -> dict[str, set[str]]:
    """Return, for each field that a class body of those modules declares, the qualified names of the classes."""
    found: dict[str, set[str]] = {}
    modules = {module.name: module for module in backend_modules(project)}
    modules.update({cls.module.name: cls.module for cls in metadata_family(project)})
    if project.batch_class is not None:
        modules[project.batch_class.module.name] = project.batch_class.module
    for module in modules.values():
        for cls in project.index.classes(module):
            for node in cls.node.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found.setdefault(node.target.id, set()).add(cls.qualname)
                elif isinstance(node, ast.FunctionDef) and node.decorator_list:
                    found.setdefault(node.name, set()).add(cls.qualname)
    return found


def metadata_family(project: Project) -> tuple[ClassInfo, ...]:
    """Return the metadata classes, their bases, and the dataclasses of the tree that their fields hold."""
    found: dict[ClassInfo, None] = {}
    pending = [info for cls in project.metadata_classes for info in cls.mro]
    while pending:
        cls = pending.pop()
        if cls in found:
            continue
        found[cls] = None
        for field in cls.own_fields.values():
            if field.annotation is not None and field.kind == "declared":
                declared = read_annotation(field.annotation, cls.module, cls)
                pending += [info for held in _held(declared) for info in held.mro if held.is_dataclass]
    return tuple(sorted(found, key=lambda cls: cls.qualname))


def _held(declared: DeclaredType) -> Iterator[ClassInfo]:
    yield from (ref.cls for ref in declared.refs)
    for part in (declared.element, *declared.items):
        if part is not None:
            yield from _held(part)
