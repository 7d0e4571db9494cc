"""What an annotation says, with type variables bound along the inheritance chain."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from mla_contract.audit.model.classes import ClassInfo, Field
from mla_contract.audit.model.index import Assigned, External
from mla_contract.audit.model.module import Module, dotted_name

CONTAINERS = frozenset(
    {"list", "List", "Sequence", "tuple", "Tuple", "set", "frozenset", "Iterable", "Iterator", "deque", "Collection"}
)
MAPPINGS = frozenset({"dict", "Dict", "Mapping", "MutableMapping", "defaultdict", "OrderedDict"})
WRAPPERS = frozenset({"ClassVar", "Final", "Annotated", "Required", "NotRequired", "InitVar", "ReadOnly"})


@dataclass(frozen=True, slots=True)
class TypeRef:
    """A class with its type arguments, None where an argument is unknown."""

    cls: ClassInfo
    args: tuple[TypeRef | None, ...] = ()


@dataclass(frozen=True, slots=True)
class DeclaredType:
    """What values an annotation admits, as far as the tree's own classes go.

    Attributes:
        refs: Classes of the tree that a value may be an instance of.
        optional: Whether None is admitted.
        element: What an element is, for sequences and mapping values.
        items: What the items of a fixed-length tuple are.
        class_of: Whether the value is the class itself (``type[X]``).
        scalar: Name of a builtin scalar (``int``, ``bool``, ``str``, ``float``), if the annotation is one.
    """

    refs: tuple[TypeRef, ...] = ()
    optional: bool = False
    element: DeclaredType | None = None
    items: tuple[DeclaredType, ...] = ()
    class_of: bool = False
    scalar: str | None = None


Bindings = Mapping[str, TypeRef | None]


def type_params(cls: ClassInfo) -> tuple[str, ...]:
    """Return the names of the type parameters of a class, in order."""
    known = cls.index.type_params.get(cls)
    if known is None:
        known = cls.index.type_params[cls] = _type_params(cls)
    return known


def _type_params(cls: ClassInfo) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for _, expr in cls.base_exprs:
        if isinstance(expr, ast.Subscript):
            params = [n.id for n in _arguments(expr) if isinstance(n, ast.Name) and _type_var(cls.module, n.id)]
            if dotted_name(expr.value).rpartition(".")[2] in ("Generic", "Protocol"):
                return tuple(params)
            names.update(dict.fromkeys(params))
    return tuple(names)


def bindings_for(ref: TypeRef, owner: ClassInfo) -> Bindings:
    """Return what the type variables of a base class stand for in an instance of a type.

    Args:
        ref: The type of the instance.
        owner: A class of its MRO.
    """
    params = type_params(ref.cls)
    own = {name: ref.args[i] if i < len(ref.args) else None for i, name in enumerate(params)}
    if owner is ref.cls:
        return own
    for base, expr in ref.cls.base_exprs:
        if base is None or not base.is_subclass_of(owner):
            continue
        args: tuple[TypeRef | None, ...] = ()
        if isinstance(expr, ast.Subscript):
            args = tuple(_argument(ref.cls, node, own) for node in _arguments(expr))
        return bindings_for(TypeRef(base, args), owner)
    return own


def field_type(ref: TypeRef, field: Field) -> DeclaredType:
    """Return the declared type of a field in an instance of a type, with the type's arguments in place."""
    types = ref.cls.index.field_types
    known = types.get((ref, field.owner, field.name))
    if known is None:
        bindings = bindings_for(ref, field.owner)
        known = read_annotation(field.annotation, field.owner.module, field.owner, bindings)
        types[ref, field.owner, field.name] = known
    return known


def read_annotation(
    node: ast.expr | None, module: Module, scope: ClassInfo | None = None, bindings: Bindings | None = None
) -> DeclaredType:
    """Return the type that an annotation describes.

    Args:
        node: The annotation; a string is parsed.
        module: Module whose names it uses.
        scope: Class in whose body it stands, for nested classes.
        bindings: What type variables stand for.
    """
    try:
        return _read(node, module, scope, bindings)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return DeclaredType()


def _read(node: ast.expr | None, module: Module, scope: ClassInfo | None, bindings: Bindings | None) -> DeclaredType:
    if node is None:
        return DeclaredType()
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            return read_annotation(ast.parse(node.value, mode="eval").body, module, scope, bindings)
        return DeclaredType(optional=node.value is None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _union([read_annotation(n, module, scope, bindings) for n in (node.left, node.right)])
    if isinstance(node, ast.Subscript):
        return _subscript(node, module, scope, bindings)
    if isinstance(node, ast.Name) and node.id in ("int", "bool", "str", "float"):
        return DeclaredType(scalar=node.id)
    if isinstance(node, ast.Name) and _type_var(module, node.id):
        return _from_type_var(node.id, module, bindings)
    ref = _class_ref(node, module, scope)
    return DeclaredType((ref,)) if ref else DeclaredType()


def part_classes(cls: ClassInfo) -> tuple[ClassInfo, ...]:
    """Return a class and the classes that its fields are annotated with, those of the parts included."""
    found: dict[ClassInfo, None] = {}
    pending = [cls]
    while pending:
        info = pending.pop()
        if info in found:
            continue
        found[info] = None
        for field in info.fields.values():
            declared: DeclaredType | None = read_annotation(field.annotation, field.owner.module, field.owner)
            while declared is not None:
                pending += [ref.cls for ref in declared.refs]
                declared = declared.element
    return tuple(found)


def _subscript(node: ast.Subscript, module: Module, scope: ClassInfo | None, bindings: Bindings | None) -> DeclaredType:
    head = dotted_name(node.value).rpartition(".")[2]
    arguments = _arguments(node)
    parts = [read_annotation(n, module, scope, bindings) for n in arguments]
    if head == "Optional":
        return _union([*parts, DeclaredType(optional=True)])
    if head == "Union":
        return _union(parts)
    if head in WRAPPERS:
        return parts[0] if parts else DeclaredType()
    if head in ("type", "Type"):
        return DeclaredType(parts[0].refs, class_of=True) if parts else DeclaredType()
    if head in ("tuple", "Tuple") and not any(isinstance(n, ast.Constant) and n.value is ... for n in arguments):
        return DeclaredType(items=tuple(parts))
    if head in CONTAINERS:
        return DeclaredType(element=parts[0] if parts else None)
    if head in MAPPINGS:
        return DeclaredType(element=parts[-1] if parts else None)
    ref = _class_ref(node.value, module, scope)
    if ref is None:
        return DeclaredType()
    scope_class = scope or ref.cls
    args = tuple(_argument_in(n, module, scope_class, bindings or {}) for n in arguments)
    return DeclaredType((TypeRef(ref.cls, args),))


def _union(parts: list[DeclaredType]) -> DeclaredType:
    refs = tuple(dict.fromkeys(ref for part in parts for ref in part.refs))
    element = next((part.element for part in parts if part.element), None)
    items = next((part.items for part in parts if part.items), ())
    scalars = [part for part in parts if part != DeclaredType(optional=True)]
    scalar = scalars[0].scalar if len(scalars) == 1 else None
    return DeclaredType(refs, any(p.optional for p in parts), element, items, any(p.class_of for p in parts), scalar)


def _arguments(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _argument(cls: ClassInfo, node: ast.expr, own: Bindings) -> TypeRef | None:
    return _argument_in(node, cls.module, cls, own)


def _argument_in(node: ast.expr, module: Module, scope: ClassInfo, bindings: Bindings) -> TypeRef | None:
    refs = read_annotation(node, module, scope, bindings).refs
    return refs[0] if refs else None


def _class_ref(node: ast.expr, module: Module, scope: ClassInfo | None) -> TypeRef | None:
    if scope is not None and isinstance(node, ast.Name):
        for cls in scope.mro:
            if node.id in cls.nested:
                return TypeRef(cls.nested[node.id])
    symbol = scope.lookup(node) if scope is not None else scope
    if symbol is None or isinstance(symbol, External):
        symbol = scope.index.resolve_expr(module, node) if scope is not None else _resolve(module, node)
    return TypeRef(symbol) if isinstance(symbol, ClassInfo) else None


def _resolve(module: Module, node: ast.expr) -> object:
    return module.index.resolve_expr(module, node) if module.index is not None else None


def _type_var(module: Module, name: str) -> ast.Call | None:
    for binding in module.bindings.get(name, ()):
        call = _as_type_var(binding)
        if call is not None:
            return call
    if module.index is not None:
        symbol = module.index.resolve(module, name)
        if isinstance(symbol, Assigned):
            return _as_type_var(symbol.value)
    return None


def _as_type_var(value: object) -> ast.Call | None:
    is_call = isinstance(value, ast.Call) and dotted_name(value.func).rpartition(".")[2] == "TypeVar"
    return value if isinstance(value, ast.Call) and is_call else None


def _from_type_var(name: str, module: Module, bindings: Bindings | None) -> DeclaredType:
    bound = (bindings or {}).get(name)
    if bound is not None:
        return DeclaredType((bound,))
    call = _type_var(module, name)
    for keyword in call.keywords if call else ():
        if keyword.arg in ("bound", "default"):
            return read_annotation(keyword.value, module)
    return DeclaredType()
