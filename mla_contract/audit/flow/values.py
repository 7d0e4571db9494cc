"""Abstract values: just enough to follow metadata, the layer and token counts through a function."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from mla_contract.audit.model.index import Function
from mla_contract.audit.model.module import Module
from mla_contract.audit.model.types import DeclaredType, TypeRef


class Role(Enum):
    """What an object is to the audit."""

    METADATA = "metadata"
    BATCH = "batch"
    LAYER = "layer"
    IMPL = "impl"
    BUILDER = "builder"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Const:
    """A known constant."""

    value: object


@dataclass(frozen=True, slots=True)
class Lin:
    """An integer known as a sum of symbols: ``terms`` maps a symbol to its factor."""

    terms: tuple[tuple[str, int], ...]
    const: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """A tensor with a known leading dimension."""

    rows: Value


@dataclass(frozen=True, slots=True)
class RowShape:
    """The shape of such a tensor."""

    rows: Value


@dataclass(frozen=True, slots=True)
class Unknown:
    """Anything else. ``config`` says that it does not vary from batch to batch in one process."""

    config: bool = False


@dataclass(frozen=True, slots=True)
class Obj:
    """An instance of a class of the tree.

    Attributes:
        ref: Its type.
        role: What it is to the audit.
        path: Access path from the metadata object it belongs to, empty for that object itself.
        maybe_none: Whether it may be None instead.
        values: Known values of attributes.
        exact: Whether ``ref`` is the class itself, rather than a base of it.
    """

    ref: TypeRef
    role: Role = Role.PLAIN
    path: str = ""
    maybe_none: bool = False
    values: tuple[tuple[str, Value], ...] = ()
    exact: bool = True


@dataclass(frozen=True, slots=True)
class ClassVal:
    """A class of the tree."""

    ref: TypeRef


@dataclass(frozen=True, slots=True)
class FuncVal:
    """A function of the tree, bound to an object or not."""

    function: Function
    bound: Value | None = None


@dataclass(frozen=True, slots=True)
class SuperVal:
    """What ``super()`` gives in a method."""

    function: Function
    bound: Value


@dataclass(frozen=True, slots=True)
class Tup:
    """A tuple or list display."""

    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Seq:
    """A sequence or mapping with like elements."""

    element: Value


@dataclass(frozen=True, slots=True)
class ModuleVal:
    """A module of the tree."""

    module: Module


@dataclass(frozen=True, slots=True)
class ExternalVal:
    """A name from outside the tree, by its dotted name."""

    name: str


class Special(Enum):
    """Objects of vLLM's forward context, known by the function that returns them."""

    FORWARD_CONTEXT = "forward context"
    METADATA_MAP = "metadata of all layers"


Value = (
    Const
    | Lin
    | Rows
    | RowShape
    | Unknown
    | Obj
    | ClassVal
    | FuncVal
    | SuperVal
    | Tup
    | Seq
    | ModuleVal
    | ExternalVal
    | Special
)

DATA = Unknown(config=False)
CONFIG = Unknown(config=True)

MAX_NESTING = 8
"""How deep values are followed into one another; each level may double what there is to compare.

A record, its prefill part, a list of chunks and a chunk are four levels.
"""


def is_config(value: Value) -> bool:
    """Return whether a value stays the same from batch to batch."""
    if isinstance(value, Unknown):
        return value.config
    if isinstance(value, Tup):
        return all(is_config(item) for item in value.items)
    if isinstance(value, Obj):
        # Layers, impls and builders live as long as the process does; metadata and batches are new at every step.
        return value.role not in (Role.METADATA, Role.BATCH)
    return isinstance(value, Const | ClassVal | FuncVal | ModuleVal | ExternalVal | SuperVal)


def is_tracked(value: Value) -> bool:
    """Return whether a value leads to metadata, or to the layer that holds it."""
    if isinstance(value, Obj):
        return value.role in (Role.METADATA, Role.BATCH)
    if isinstance(value, Tup):
        return any(is_tracked(item) for item in value.items)
    if isinstance(value, Seq):
        return is_tracked(value.element)
    return value is Special.METADATA_MAP


def join(left: Value, right: Value) -> Value:
    """Return the value that stands for either of two."""
    if left == right:
        return left
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Obj):
            # Metadata met by something unknown stays metadata: the unknown side is mostly a value that was lost on the
            # way, and giving the object up would hide every read behind this point. What is known of its fields holds
            # on one side only, so that goes.
            if one.role is Role.METADATA and (other is Special.METADATA_MAP or isinstance(other, Unknown)):
                return replace(one, values=())
            if other == Const(None):
                return replace(one, maybe_none=True)
    if isinstance(left, Obj) and isinstance(right, Obj):
        if left.ref == right.ref:
            # A value of a field may decide a later test, so it has to hold on both sides.
            values = tuple(pair for pair in left.values if pair in right.values)
            return replace(left, maybe_none=left.maybe_none or right.maybe_none, values=values)
        for one, other in ((left, right), (right, left)):
            if one.ref.cls.is_subclass_of(other.ref.cls):
                # The base stands for both, and no longer says that an attribute is missing: the subclass may have it.
                return replace(other, maybe_none=left.maybe_none or right.maybe_none, values=(), exact=False)
    # Displays of one length keep their positions, for they are unpacked behind the branches that made them.
    if isinstance(left, Tup) and isinstance(right, Tup) and len(left.items) == len(right.items):
        return Tup(tuple(join(a, b) for a, b in zip(left.items, right.items, strict=True)))
    if isinstance(left, Seq) and isinstance(right, Seq):
        return Seq(join(left.element, right.element))
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Seq) and isinstance(other, Tup):
            element = one.element
            for item in other.items:
                element = join(element, item)
            return Seq(element)
    # A value is settled by the configuration only if it is on either way; otherwise the test of it is the batch's.
    return Unknown(is_config(left) and is_config(right))


def bounded(value: Value) -> Value:
    """Return a value, or less than is known of it where it is nested so deep that comparing it would take ages."""
    if _nesting(value) < MAX_NESTING:
        return value
    return replace(value, values=()) if isinstance(value, Obj) else Unknown(is_config(value))


def _nesting(value: Value) -> int:
    if isinstance(value, Tup):
        return 1 + max(map(_nesting, value.items), default=0)
    if isinstance(value, Obj):
        return 1 + max((_nesting(item) for _, item in value.values), default=0)
    if isinstance(value, Seq):
        return 1 + _nesting(value.element)
    return _nesting(value.rows) if isinstance(value, Rows | RowShape) else 0


def linear(value: Value) -> Lin | None:
    """Return an integer value in linear form, or None."""
    if isinstance(value, Lin):
        return value
    if isinstance(value, Const) and isinstance(value.value, int):
        return Lin((), int(value.value))
    return None


def combine(left: Lin, right: Lin, sign: int) -> Value:
    """Return ``left + sign * right``."""
    terms = dict(left.terms)
    for name, factor in right.terms:
        terms[name] = terms.get(name, 0) + sign * factor
    kept = tuple(sorted((name, factor) for name, factor in terms.items() if factor))
    const = left.const + sign * right.const
    return Lin(kept, const) if kept else Const(const)


def value_of_type(declared: DeclaredType, role: Role, path: str, *, config: bool) -> Value:
    """Return what an annotation says of a value.

    Args:
        declared: The annotation.
        role: Role of objects found through it.
        path: Access path of the value.
        config: Whether a scalar found through it stays the same from batch to batch.
    """
    if declared.class_of and declared.refs:
        return ClassVal(declared.refs[0])
    if len(declared.refs) == 1:
        return Obj(declared.refs[0], role, path, maybe_none=declared.optional, exact=False)
    if declared.refs:
        return Unknown(config)
    if declared.items:
        return Tup(tuple(value_of_type(item, role, f"{path}[]", config=config) for item in declared.items))
    if declared.element is not None and (declared.element.refs or declared.element.items):
        return Seq(value_of_type(declared.element, role, f"{path}[]", config=config))
    return Unknown(config)
