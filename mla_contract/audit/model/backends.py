"""Which attention backends a tree has, and which metadata, builder and impl class each one names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.index import Function, ModuleIndex
from mla_contract.audit.model.module import FunctionNode, Import, dotted_name, imported_names
from mla_contract.audit.model.nodes import walk
from mla_contract.audit.model.types import TypeRef, bindings_for, read_annotation, type_params

BACKEND = "AttentionBackend"
BUILDER = "AttentionMetadataBuilder"
METADATA = "AttentionMetadata"
MLA_IMPLS = frozenset({"MLAAttentionImpl", "SparseMLAAttentionImpl"})
CANDIDATE_WORDS = (b"MLA", b"get_attention_context", b"Indexer", b"skip_kv_gather", b"get_impl_cls", b"get_builder_cls")


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to serve an attention layer: the classes that belong together.

    Attributes:
        cls: The backend class.
        metadata: Type of the metadata that its builder returns.
        builder: The builder class.
        impl: Type of the impl, or None for a backend without one (a cache that only has metadata).
        is_mla: Whether the shared MLA layer can run it.
    """

    cls: ClassInfo
    metadata: TypeRef
    builder: ClassInfo
    impl: ClassInfo | None
    is_mla: bool

    @property
    def is_indexer(self) -> bool:
        """Return whether the metadata is that of an indexer cache."""
        return self.impl is None and any("Indexer" in info.node.name for info in self.metadata.cls.mro)


def find_backends(index: ModuleIndex) -> tuple[Backend, ...]:
    """Return the MLA and indexer backends of a tree, each combination of its classes once."""
    found: dict[tuple[str, str, str, str], Backend] = {}
    for module in index.containing(*CANDIDATE_WORDS, also=b"Backend"):
        for cls in index.classes(module):
            for backend in _backends_of(cls):
                impl = backend.impl.qualname if backend.impl else ""
                key = (cls.qualname, backend.metadata.cls.qualname, backend.builder.qualname, impl)
                found.setdefault(key, backend)
    return tuple(found[key] for key in sorted(found))


def returned_classes(index: ModuleIndex, owner: ClassInfo, method: FunctionNode) -> list[ClassInfo]:
    """Return the classes of the tree that a method returns, in source order, function-local imports included."""
    local: dict[str, Import] = {}
    for node in walk(method):
        if isinstance(node, ast.Import | ast.ImportFrom):
            local.update(imported_names(owner.module.package, node))
    found: list[ClassInfo] = []
    returns = [node for node in walk(method) if isinstance(node, ast.Return)]
    for node in sorted(returns, key=lambda node: node.lineno):
        if node.value is not None:
            for expr in _alternatives(node.value):
                if isinstance(expr, ast.Name) and expr.id in local:
                    symbol: object = index.resolve_import(local[expr.id])
                else:
                    symbol = owner.lookup(expr)
                if isinstance(symbol, ClassInfo) and symbol not in found:
                    found.append(symbol)
    return found


def constant_result(cls: ClassInfo, name: str) -> object:
    """Return the constant that a zero-argument method returns, or None where it is none."""
    method = cls.find_method(name)
    if method is None:
        return None
    returns = [n for n in walk(method[1]) if isinstance(n, ast.Return)]
    if len(returns) == 1 and isinstance(returns[0].value, ast.Constant):
        return returns[0].value.value
    return None


def metadata_of_builder(builder: ClassInfo) -> TypeRef | None:
    """Return the type of the metadata that a builder returns.

    An explicit ``metadata_cls`` wins over the type argument of the builder, and that over the annotation of ``build``.
    """
    for cls in builder.mro:
        field = cls.own_fields.get("metadata_cls")
        if field is not None and isinstance(field.default, ast.Name | ast.Attribute) and field.kind == "declared":
            symbol = cls.lookup(field.default)
            if isinstance(symbol, ClassInfo):
                return TypeRef(symbol)
    for cls in builder.mro:
        if cls.node.name == BUILDER:
            break
        for base, expr in cls.base_exprs:
            name = expr.value if isinstance(expr, ast.Subscript) else expr
            builds = BUILDER in base.base_names if base is not None else dotted_name(name).endswith(BUILDER)
            if not builds or not isinstance(expr, ast.Subscript):
                continue
            refs = read_annotation(expr.slice, cls.module, cls, bindings_for(TypeRef(builder), cls)).refs
            if refs and refs[0].cls.node.name != METADATA:
                return refs[0]
    build = builder.find_method("build")
    if build is not None and build[0].node.name != BUILDER:
        refs = read_annotation(build[1].returns, build[0].module, build[0]).refs
        if refs and refs[0].cls.node.name != METADATA:
            return refs[0]
    return None


def _backends_of(cls: ClassInfo) -> tuple[Backend, ...]:
    """Return the backends that a class stands for; none where it is nested deeper than Python can recurse."""
    try:
        return tuple(_combinations(cls)) if BACKEND in cls.base_names and cls.node.name != BACKEND else ()
    except RecursionError:
        return ()


def _combinations(cls: ClassInfo) -> Iterator[Backend]:
    index = cls.index
    impls = _results(cls, "get_impl_cls")
    mla_impls = [impl for impl in impls if impl.base_names & MLA_IMPLS]
    builders = _results(cls, "get_builder_cls") or _builders_from_impl(index, cls, mla_impls)
    mla = constant_result(cls, "is_mla") is True or bool(mla_impls)
    for builder in builders:
        metadata = metadata_of_builder(builder) or _metadata_of_backend(cls, mla_impls)
        if metadata is None:
            continue
        if mla_impls:
            for impl in mla_impls:
                yield Backend(cls, metadata, builder, impl, mla)
        elif not impls:
            yield Backend(cls, metadata, builder, None, False)


def _results(cls: ClassInfo, name: str) -> list[ClassInfo]:
    method = cls.find_method(name)
    return returned_classes(cls.index, *method) if method else []


def _metadata_of_backend(cls: ClassInfo, impls: list[ClassInfo]) -> TypeRef | None:
    named = _results(cls, "get_metadata_cls")
    if named:
        return TypeRef(named[0])
    for impl in impls:
        for info in impl.mro:
            if info.node.name in MLA_IMPLS and type_params(info):
                bound = bindings_for(TypeRef(impl), info).get(type_params(info)[0])
                if bound is not None:
                    return bound
    return None


def _builders_from_impl(index: ModuleIndex, cls: ClassInfo, impls: list[ClassInfo]) -> list[ClassInfo]:
    """Return the builders in the backend's own module, for a backend whose getter the source does not show."""
    if not impls:
        return []
    return [info for info in index.classes(cls.module) if BUILDER in info.base_names and info.node.name != BUILDER]


def _alternatives(expr: ast.expr) -> Iterator[ast.expr]:
    if isinstance(expr, ast.IfExp):
        yield from _alternatives(expr.body)
        yield from _alternatives(expr.orelse)
    else:
        yield expr


def method_of(cls: ClassInfo, name: str) -> Function | None:
    """Return a method of a class as a function, wherever in its MRO it is defined."""
    found = cls.find_method(name)
    return Function(found[0].module, found[1], found[0]) if found else None
