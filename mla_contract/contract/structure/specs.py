"""What a Protocol demands, as data: each member's annotation parsed into a specification.

The strict models, the fast path and the docs are built from here, so that none of them can disagree with the Protocols.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from mla_contract.contract.schema.residence import DEVICE, HOST
from mla_contract.contract.schema.tiers import TIERS, Member, members
from mla_contract.contract.structure.axes import Shape, parse_shape
from mla_contract.errors import InvalidContract

DTYPES: Mapping[str, str | None] = MappingProxyType(
    {
        "Bool": "bool",
        "Int8": "int8",
        "Int16": "int16",
        "Int32": "int32",
        "Int64": "int64",
        "UInt8": "uint8",
        "Float16": "float16",
        "BFloat16": "bfloat16",
        "Float32": "float32",
        "Float64": "float64",
        "Shaped": None,
    }
)
"""Element types of the annotations; None allows any."""

SCALARS = frozenset({"int", "bool", "str", "float", "slice", "dtype"})
_RESIDENCES = {"Host": HOST, "Device": DEVICE}
_SEQUENCES = frozenset({"list", "tuple", "Sequence"})


@dataclass(frozen=True, slots=True)
class ScalarSpec:
    """A plain value, by the name of its type."""

    kind: str


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An array: element type, named axes, and where it lives; None where the contract leaves that open."""

    dtype: str | None
    shape: Shape
    residence: str | None = None


@dataclass(frozen=True, slots=True)
class ListSpec:
    """A list or tuple of one kind of item."""

    item: Spec


@dataclass(frozen=True, slots=True)
class RecordSpec:
    """A nested record that satisfies a Protocol."""

    protocol: type


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A member that is called, not read."""


Spec = ScalarSpec | TensorSpec | ListSpec | RecordSpec | MethodSpec


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One member of a Protocol.

    Attributes:
        name: The member's name.
        options: What it may be, besides None.
        optional: Whether None is allowed.
        residence: ``host``, ``device``, or None where the contract leaves it open.
        annotation: The annotation as written.
    """

    name: str
    options: tuple[Spec, ...]
    optional: bool
    residence: str | None
    annotation: str


@cache
def specs_of(protocol: type) -> Mapping[str, FieldSpec]:
    """Return the specification of each member of a Protocol, in its order.

    Raises:
        InvalidContract: If an annotation uses a form that is not known here.
    """
    return MappingProxyType({name: _field(protocol, member) for name, member in members(protocol).items()})


def tensors_of(protocol: type) -> Iterator[tuple[FieldSpec, TensorSpec]]:
    """Yield the members that may be arrays."""
    for field in specs_of(protocol).values():
        for option in field.options:
            if isinstance(option, TensorSpec):
                yield field, option


def _field(protocol: type, member: Member) -> FieldSpec:
    """Return one member's specification."""
    if member.is_method:
        return FieldSpec(member.name, (MethodSpec(),), False, None, member.annotation)
    try:
        tree = ast.parse(member.annotation, mode="eval").body
        options = [_spec(protocol, option) for option in _alternatives(tree)]
    except (SyntaxError, InvalidContract) as error:
        raise InvalidContract(f"{member.owner}.{member.name}: {error}") from error
    known = tuple(option for option in options if option is not None)
    return FieldSpec(member.name, known, len(known) < len(options), _residence(known), member.annotation)


def _residence(options: tuple[Spec, ...]) -> str | None:
    """Return where the arrays of a member live."""
    return next((option.residence for option in options if isinstance(option, TensorSpec)), None)


def _alternatives(tree: ast.expr) -> list[ast.expr]:
    """Return the members of a union, left to right."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        return [*_alternatives(tree.left), *_alternatives(tree.right)]
    return [tree]


def _spec(protocol: type, tree: ast.expr) -> Spec | None:
    """Return the specification of one alternative; None for None."""
    match tree:
        case ast.Constant(value=None):
            return None
        case ast.Constant(value=str() as quoted):
            return _spec(protocol, ast.parse(quoted, mode="eval").body)
        case ast.Name(id=name) if name in SCALARS:
            return ScalarSpec(name)
        case ast.Name(id=name):
            return RecordSpec(_protocol(protocol, name))
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in _RESIDENCES:
            array = _spec(protocol, inner)
            if isinstance(array, TensorSpec):
                return replace(array, residence=_RESIDENCES[name])
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=[_, ast.Constant(value=str() as axes)])):
            if name in DTYPES:
                return TensorSpec(DTYPES[name], parse_shape(axes))
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=[item, ast.Constant(value=end)])):
            if name == "tuple" and end is Ellipsis:
                return ListSpec(_item(protocol, item))
        case ast.Subscript(value=ast.Name(id=name), slice=item) if name in _SEQUENCES:
            return ListSpec(_item(protocol, item))
    raise InvalidContract(f"annotation {ast.unparse(tree)!r} is not understood")


def _item(protocol: type, tree: ast.expr) -> Spec:
    """Return the specification of a list's items."""
    spec = _spec(protocol, tree)
    if spec is None:
        raise InvalidContract("a list of None says nothing")
    return spec


def _protocol(context: type, name: str) -> type:
    """Return the Protocol that an annotation names: one beside ``context``, or a tier."""
    found = getattr(sys.modules.get(context.__module__), name, None)
    if isinstance(found, type):
        return found
    for tier in TIERS.values():
        if tier.__name__ == name:
            return tier
    raise InvalidContract(f"unknown type {name!r}; tiers are {', '.join(tier.__name__ for tier in TIERS.values())}")
