"""Strict pydantic models, derived from the Protocols, and the structural check that runs on them.

``model_of`` turns each member of a Protocol into a field; ``check_structure`` adds what needs two fields at once: named
axes and one device. Nothing here reads an element of an array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    InstanceOf,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    ValidationError,
    create_model,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from mla_contract.contract.structure.arrays import array_fault, describe, is_dtype
from mla_contract.contract.structure.faults import CODE_OF, HELP_OF, SENTENCE_OF
from mla_contract.contract.structure.shapes import check_shapes
from mla_contract.contract.structure.specs import (
    FieldSpec,
    ListSpec,
    MethodSpec,
    RecordSpec,
    ScalarSpec,
    Spec,
    TensorSpec,
    specs_of,
)
from mla_contract.contract.violation import Violation

_CONFIG = ConfigDict(strict=True, from_attributes=True, arbitrary_types_allowed=True, frozen=True)
_TAG = "as "
_PLAIN: Mapping[str, Any] = MappingProxyType(
    {
        "int": Annotated[StrictInt, Field(ge=0)],
        "bool": StrictBool,
        "str": StrictStr,
        "float": StrictFloat,
        "slice": InstanceOf[slice],
    }
)


@cache
def model_of(protocol: type) -> type[BaseModel]:
    """Return the strict model of a Protocol: one required field for each member, read from attributes."""
    fields: dict[str, Any] = {name: (_annotation(field), ...) for name, field in specs_of(protocol).items()}
    return create_model(f"{protocol.__name__}Model", __config__=_CONFIG, **fields)


def check_structure(
    obj: object, protocol: type, path: str = "", bindings: Mapping[str, int] | None = None
) -> tuple[Violation, ...]:
    """Return every structural breach of ``protocol`` by ``obj``.

    Args:
        obj: What stands where the Protocol is expected.
        protocol: A Protocol of the contract.
        path: Prefix of the reported paths; the object's class by default.
        bindings: Sizes of axes that an enclosing record has bound.

    Sync: none
    """
    root = path or type(obj).__name__
    found: list[Violation] = []
    broken: set[str] = set()
    try:
        model_of(protocol).model_validate(obj)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            violation = _violation(details, root, protocol)
            broken.add(violation.path)
            found.append(violation)
    return (*found, *check_shapes(obj, protocol, root, bindings or {}, frozenset(broken)))


def _annotation(field: FieldSpec) -> Any:
    """Return the pydantic annotation of one member."""
    if len(field.options) == 1:
        annotation = _option(field, field.options[0])
    else:
        tagged = tuple(
            Annotated[_option(field, option), Tag(_TAG + str(index))] for index, option in enumerate(field.options)
        )
        annotation = Annotated[Union[tagged], Discriminator(_chooser(field.options))]  # noqa: UP007
    return annotation | None if field.optional else annotation


def _option(field: FieldSpec, option: Spec) -> Any:
    """Return the pydantic annotation of one alternative."""
    match option:
        case TensorSpec():
            return Annotated[Any, PlainValidator(_array_validator(field, option))]
        case ListSpec(item=item):
            return Sequence[_option(field, item)]  # type: ignore[misc]
        case RecordSpec(protocol=protocol):
            return model_of(protocol)
        case MethodSpec():
            return Annotated[Any, PlainValidator(_callable)]
        case ScalarSpec(kind="dtype"):
            return Annotated[Any, PlainValidator(_dtype)]
        case ScalarSpec(kind=kind):
            return _PLAIN[kind]


def _array_validator(field: FieldSpec, spec: TensorSpec) -> Callable[[Any], Any]:
    """Return the validator of one array member."""

    def validate(value: Any) -> Any:
        fault = array_fault(field, spec, value)
        if fault is not None:
            raise PydanticCustomError("mla", "{expected}", {"kind": fault[0], "expected": fault[1]})
        return value

    return validate


def _dtype(value: Any) -> Any:
    if not is_dtype(value):
        raise PydanticCustomError("mla", "{expected}", {"kind": "type", "expected": "an element type"})
    return value


def _callable(value: Any) -> Any:
    if not callable(value):
        raise PydanticCustomError("mla", "{expected}", {"kind": "type", "expected": "a method"})
    return value


def _chooser(options: tuple[Spec, ...]) -> Callable[[Any], str]:
    """Return the function that picks the alternative that a value fits best."""
    from mla_contract.contract.structure.shapes import best_option

    return lambda value: _TAG + str(best_option(options, value))


def _violation(details: ErrorDetails, root: str, protocol: type) -> Violation:
    """Return one pydantic error as a violation."""
    context: dict[str, Any] = details.get("ctx", {})
    value = details["input"]
    kind = _kind(details["type"], context, value)
    path = root
    for part in details["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith(_TAG):
            path += f".{part}"
    absent = kind in ("missing", "unreadable")
    return Violation(
        CODE_OF[kind],
        path,
        SENTENCE_OF[kind],
        expected=str(context.get("expected", "")) or _expected(details, protocol),
        got="" if kind == "missing" else str(context.get("error", "")) if absent else describe(value),
        help=HELP_OF[kind],
    )


def _kind(error: str, context: Mapping[str, Any], value: object) -> str:
    """Return the kind of fault behind a pydantic error type."""
    if error == "missing":
        return "missing"
    if error == "get_attribute_error":
        return "unreadable"
    if value is None:
        return "none"
    if error == "mla":
        return str(context["kind"])
    return "negative" if error == "greater_than_equal" else "type"


def _expected(details: ErrorDetails, protocol: type) -> str:
    """Return the annotation of the field that an error is about."""
    annotation = ""
    for part in details["loc"]:
        if not isinstance(part, str) or part.startswith(_TAG):
            continue
        field = specs_of(protocol).get(part)
        if field is None:
            return annotation
        annotation = field.annotation
        for option in field.options:
            inner = option.item if isinstance(option, ListSpec) else option
            if isinstance(inner, RecordSpec):
                protocol = inner.protocol
    return annotation
