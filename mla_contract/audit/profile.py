"""What one vLLM release says about attention metadata: what is read, what is declared, what is shared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mla_contract.audit.drift.functions import shared_functions
from mla_contract.audit.flow.events import Read
from mla_contract.audit.model.backends import BUILDER, MLA_IMPLS, Backend, constant_result
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.nodes import text_of

if TYPE_CHECKING:
    from mla_contract.audit.project import Project

SCHEMA = 1
MAPPED_METHODS = frozenset({"__init__"})


def profile_tree(project: Project) -> dict[str, Any]:
    """Return the profile of a tree, ready to be written as JSON.

    Args:
        project: The tree.

    Returns:
        ``reads`` of the shared layer, ``backends``, ``classes`` with own and inherited fields, ``signatures`` of the
        methods that the engine calls, and ``functions``: hashes of the shared split and chunk functions.
    """
    return {
        "schema": SCHEMA,
        "release": project.release,
        "reads": _reads(project),
        "backends": [_backend(b) for b in (*project.mla_backends, *project.indexer_backends)],
        "classes": _classes(project),
        "signatures": _signatures(project),
        "functions": dict(sorted(shared_functions(project).items())),
    }


def render_profile(profile: Mapping[str, Any]) -> str:
    """Return a profile as JSON text, one read, field or signature a line, so that diffs stay readable."""
    return _render(profile, 0) + "\n"


def _render(value: Any, level: int) -> str:
    flat = json.dumps(value, sort_keys=True)
    if not isinstance(value, dict | list) or not value or (level > 1 and len(flat) < 400 and level > 2):
        return flat
    pad = " " * (level + 1)
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"{pad}{json.dumps(v, sort_keys=True)}" for v in value) + f"\n{' ' * level}]"
    rows = (f"{pad}{json.dumps(k)}: {_render(v, level + 1)}" for k, v in sorted(value.items()))
    return "{\n" + ",\n".join(rows) + f"\n{' ' * level}}}"


def _reads(project: Project) -> list[dict[str, Any]]:
    """Return the reads that functions shared by backends make, each once, with who reaches it."""
    merged: dict[tuple[object, ...], dict[str, Any]] = {}
    own = {b.cls.module.name for b in project.mla_backends}
    for backend in project.mla_backends:
        kind = "sparse" if _is_sparse(backend) else "dense"
        for read in project.layer_reads(backend):
            if read.function.module.name not in own:
                _merge_read(merged, read, kind)
    indexer = _indexer_classes(project)
    builders = {b.builder.module.name for b in project.indexer_backends}
    for read in project.consumers.reads:
        if not read.batch and read.holder in indexer and read.function.module.name not in builders:
            _merge_read(merged, read, "indexer")
    for read in project.layer_consumers.reads:
        layer = project.layer_records.get(read.holder)
        owner = read.function.owner
        if layer is not None and not read.batch and (owner is None or BUILDER not in owner.base_names):
            _merge_read(merged, read, layer)
    found = sorted(merged.values(), key=lambda r: (r["file"], r["line"], r["path"], r["function"]))
    for entry in found:
        entry["reached_by"] = sorted(entry["reached_by"])
    return found


def _merge_read(merged: dict[tuple[object, ...], dict[str, Any]], read: Read, kind: str) -> None:
    key = (read.function.module.path, read.node.lineno, read.node.col_offset, read.path, read.function.qualname)
    guard = " and ".join(dict.fromkeys(g.text for g in read.guards)) or None
    known = merged.get(key)
    if known is None:
        merged[key] = {
            "path": read.path,
            "file": read.function.module.path,
            "line": read.node.lineno,
            "function": read.function.qualname.rpartition(":")[2],
            "guard": guard,
            "condition": read.condition,
            "default": read.defaulted,
            "reached_by": {kind},
            "impl": _impl_of(read),
        }
        return
    known["reached_by"].add(kind)
    if known["condition"] is not None and read.condition is None:
        known["condition"], known["guard"] = None, guard


def _impl_of(read: Read) -> str | None:
    """Return the impl class whose method reads, which only backends with that class reach; None for all other code."""
    owner = read.function.owner
    return owner.qualname if owner is not None and owner.base_names & MLA_IMPLS else None


def _backend(backend: Backend) -> dict[str, Any]:
    return {
        "backend": backend.cls.qualname,
        "metadata": backend.metadata.cls.qualname,
        "builder": backend.builder.qualname,
        "impl": backend.impl.qualname if backend.impl else None,
        "kind": "indexer" if backend.is_indexer else "sparse" if _is_sparse(backend) else "dense",
    }


def _classes(project: Project) -> dict[str, dict[str, Any]]:
    """Return every class that a profile names, with its fields."""
    wanted: dict[str, tuple[ClassInfo, str]] = {}
    for cls in project.metadata_classes:
        for info in (cls, *cls.mro):
            wanted.setdefault(info.qualname, (info, "metadata"))
    if project.batch_class is not None:
        wanted[project.batch_class.qualname] = (project.batch_class, "batch")
    for backend in (*project.mla_backends, *project.indexer_backends):
        wanted.setdefault(backend.builder.qualname, (backend.builder, "builder"))
        if backend.impl is not None:
            wanted.setdefault(backend.impl.qualname, (backend.impl, "impl"))
    return {name: _class(*wanted[name]) for name in sorted(wanted)}


def _class(cls: ClassInfo, kind: str) -> dict[str, Any]:
    bases = [text_of(expr) for _, expr in cls.base_exprs]
    fields = {n: f for n, f in cls.fields.items() if kind in ("metadata", "batch") or f.kind != "assigned"}
    return {
        "kind": kind,
        "file": cls.module.path,
        "line": cls.node.lineno,
        "bases": bases,
        "fields": {
            name: {
                "type": text_of(field.annotation) if field.annotation is not None else None,
                "default": text_of(field.default) if field.default is not None and field.kind == "declared" else None,
            }
            for name, field in sorted(fields.items())
            if field.owner is cls
        },
        "inherited": {name: f.owner.qualname for name, f in sorted(fields.items()) if f.owner is not cls},
    }


def _signatures(project: Project) -> dict[str, str]:
    """Return the signatures of public methods of the extension point classes."""
    roots: dict[str, ClassInfo] = {}
    for backend in (*project.mla_backends, *project.indexer_backends):
        for cls in (backend.builder, backend.impl):
            for info in cls.mro if cls is not None else ():
                if info.node.name == BUILDER or info.node.name in MLA_IMPLS:
                    roots.setdefault(info.node.name, info)
    return {
        f"{name}.{method}": text_of(node.args)
        for name, info in sorted(roots.items())
        for method, node in sorted(info.methods.items())
        if not method.startswith("_") or method in MAPPED_METHODS
    }


def _is_sparse(backend: Backend) -> bool:
    return constant_result(backend.cls, "is_sparse") is True


def _indexer_classes(project: Project) -> frozenset[ClassInfo]:
    """Return the metadata classes of indexer backends and the classes of their parts."""
    found = {b.metadata.cls for b in project.indexer_backends}
    found |= {c.cls for b in project.indexer_backends for c in project.builders[b].events.constructs}
    return frozenset(info for cls in found for info in cls.mro if info.own_fields)


def fields_of(profile: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Return all fields of a class of a profile, inherited ones included, each with type and default."""
    cls = profile["classes"][name]
    found = dict(cls["fields"])
    for field, owner in cls["inherited"].items():
        declared = profile["classes"].get(owner, {"fields": {}})["fields"]
        found[field] = declared.get(field, {"type": None, "default": None})
    return found


def reads_by_path(profile: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the reads of a profile by field path."""
    found: dict[str, list[dict[str, Any]]] = {}
    for read in profile.get("reads", ()):
        found.setdefault(str(read["path"]), []).append(read)
    return found
