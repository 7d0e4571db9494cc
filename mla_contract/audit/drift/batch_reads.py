"""Reads of the builders' input batch, wherever a function takes it: what breaks when a release drops a field."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mla_contract.audit.flow.runs import BATCH
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.index import Function, module_name
from mla_contract.audit.model.nodes import walk
from mla_contract.audit.model.types import read_annotation

if TYPE_CHECKING:
    from mla_contract.audit.project import Project

ARGUMENT = "common_attn_metadata"
"""What builders call the batch, annotated or not."""

_ANNOTATED = re.compile(rb"\b(\w+)\s*:\s*[\"']?" + BATCH.encode() + rb"\b")
_DEFINED = re.compile(rb"\bdef \w+\([^)]*\b" + ARGUMENT.encode() + rb"\b")
_CONSTRUCTION = re.compile(rb"\b" + BATCH.encode() + rb"\((.{0,4000}?)\n\s*\)", re.DOTALL)
_KEYWORD = re.compile(rb"(?:^|\n)\s*(\w+)=")
_GETTERS = ("getattr", "hasattr")


@dataclass(frozen=True, slots=True)
class BatchRead:
    """A read of an attribute that the batch class does not have.

    Attributes:
        attr: Name of the attribute.
        node: The reading expression, or the keyword of a construction.
        function: Function that reads.
        defaulted: Whether the read has a default or is itself a test.
        guarded: Whether the function tests for the attribute first.
        constructs: Whether the attribute is an argument of a construction.
    """

    attr: str
    node: ast.expr | ast.keyword
    function: Function
    defaulted: bool
    guarded: bool
    constructs: bool = False


def missing_batch_reads(project: Project) -> Iterator[BatchRead]:
    """Yield the reads of a batch that find nothing in the tree's own batch class."""
    batch = project.batch_class
    if batch is None or batch.is_open:
        return
    known = _known(project, batch)
    for path, file in project.index.tree.files.items():
        if ARGUMENT.encode() not in file.data and BATCH.encode() not in file.data:
            continue
        if not _mentions_unknown(file.data, known):
            continue
        module = project.index.get(module_name(path))
        if module is not None:
            for function in project.index.functions(module):
                if function.owner is None or not function.owner.is_subclass_of(batch):
                    yield from _in_function(function, batch, known)


def _known(project: Project, batch: ClassInfo) -> frozenset[str]:
    """Return the attributes of the batch class and its subclasses, and those set from outside."""
    classes = (batch, *project.index.subclasses(batch))
    names = {name for cls in classes for info in cls.mro for name in (*info.fields, *info.methods, *info.nested)}
    return frozenset(names | {store.attr for store in project.stores if store.cls in classes})


def _mentions_unknown(data: bytes, known: frozenset[str]) -> bool:
    """Return whether the text reads an attribute that is not known of something that may be a batch."""
    names = {match.group(1) for match in _ANNOTATED.finditer(data)}
    if _DEFINED.search(data):
        names.add(ARGUMENT.encode())
    receiver = rb"\b(?:" + b"|".join(sorted(names)) + rb")\s*(?:\.\s*|,\s*[\"'])(\w+)"
    found = {match.group(1) for match in re.finditer(receiver, data)} if names else set()
    for match in _CONSTRUCTION.finditer(data):
        found.update(keyword.group(1) for keyword in _KEYWORD.finditer(match.group(1)))
    return any(name.decode("utf-8", "replace") not in known for name in found)


def _in_function(function: Function, batch: ClassInfo, known: frozenset[str]) -> Iterator[BatchRead]:
    names = _batch_parameters(function, batch)
    lines = function.module.lines[function.node.lineno - 1 : function.node.end_lineno]
    if not names and not any(f"{BATCH}(" in line for line in lines):
        return
    found: list[BatchRead] = []
    tested: set[str] = set()
    for node in walk(function.node):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if isinstance(node.value, ast.Name) and node.value.id in names and _is_unknown(node.attr, known):
                found.append(BatchRead(node.attr, node, function, defaulted=False, guarded=False))
        elif isinstance(node, ast.Call):
            key = _getter_key(node, names)
            if key is not None and _is_unknown(key, known):
                tested.add(key)
                defaulted = len(node.args) > 2 or getattr(node.func, "id", "") == "hasattr"
                found.append(BatchRead(key, node, function, defaulted=defaulted, guarded=False))
            elif _constructs(node, function, batch):
                for keyword in node.keywords:
                    if keyword.arg is not None and _is_unknown(keyword.arg, known):
                        found.append(BatchRead(keyword.arg, keyword, function, False, False, constructs=True))
    for read in found:
        guarded = read.attr in tested and not read.defaulted
        yield BatchRead(read.attr, read.node, read.function, read.defaulted, guarded, read.constructs)


def _batch_parameters(function: Function, batch: ClassInfo) -> frozenset[str]:
    """Return the parameters that are a batch, by annotation, or by name where there is none."""
    spec = function.node.args
    names: set[str] = set()
    for parameter in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs):
        if parameter.annotation is None:
            if parameter.arg == ARGUMENT:
                names.add(parameter.arg)
            continue
        declared = read_annotation(parameter.annotation, function.module, function.owner)
        if not declared.class_of and any(ref.cls is batch for ref in declared.refs):
            names.add(parameter.arg)
    if not names:
        return frozenset()
    rebound = {n.id for n in walk(function.node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    return frozenset(names - rebound)


def _getter_key(node: ast.Call, names: frozenset[str]) -> str | None:
    if isinstance(node.func, ast.Name) and node.func.id in _GETTERS and len(node.args) > 1:
        receiver, key = node.args[:2]
        if isinstance(receiver, ast.Name) and receiver.id in names and isinstance(key, ast.Constant):
            return key.value if isinstance(key.value, str) else None
    return None


def _constructs(node: ast.Call, function: Function, batch: ClassInfo) -> bool:
    if not isinstance(node.func, ast.Name) or node.func.id != BATCH or function.module.index is None:
        return False
    return function.module.index.resolve(function.module, node.func.id) is batch


def _is_unknown(name: str, known: frozenset[str]) -> bool:
    return name not in known and not (name.startswith("__") and name.endswith("__"))
