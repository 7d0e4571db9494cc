"""Checks that need several fields of one record: named axes, and one device for all device arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from mla_contract.contract.schema.residence import DEVICE
from mla_contract.contract.structure.arrays import array_fault, describe, is_array, is_dtype
from mla_contract.contract.structure.axes import Axis
from mla_contract.contract.structure.faults import CODE_OF, HELP_OF, SENTENCE_OF
from mla_contract.contract.structure.specs import (
    FieldSpec,
    ListSpec,
    RecordSpec,
    ScalarSpec,
    Spec,
    TensorSpec,
    specs_of,
)
from mla_contract.contract.violation import Violation

_ABSENT: Any = object()


def read(obj: object, name: str) -> Any:
    """Return an attribute, or a private marker when it is missing or reading it raises."""
    try:
        return getattr(obj, name, _ABSENT)
    except Exception:  # noqa: BLE001 - the object is foreign; whatever it raises, the field cannot be read
        return _ABSENT


def best_option(options: tuple[Spec, ...], value: object) -> int:
    """Return the index of the alternative that ``value`` fits best."""
    scores = [_score(option, value) for option in options]
    return scores.index(max(scores))


def _score(option: Spec, value: object) -> float:
    """Return how well a value fits an alternative, from 0 to 1."""
    match option:
        case TensorSpec():
            return float(is_array(value))
        case RecordSpec(protocol=protocol):
            names = list(specs_of(protocol))
            return sum(read(value, name) is not _ABSENT for name in names) / max(len(names), 1)
        case ScalarSpec(kind="dtype"):
            return float(is_dtype(value))
        case ScalarSpec(kind=kind):
            return float(type(value).__name__ == kind)
        case ListSpec():
            return float(isinstance(value, list | tuple))
    return 0.0


def check_shapes(
    obj: object, protocol: type, path: str, outer: Mapping[str, int], broken: frozenset[str] = frozenset()
) -> tuple[Violation, ...]:
    """Return every breach of the named axes and of the common device, in ``obj`` and the records inside it.

    Axes are bound by the integer field of that name first, then by the first array that has the axis alone.

    Args:
        obj: The record.
        protocol: Its Protocol.
        path: The record's path.
        outer: Sizes that the enclosing record's integer fields give.
        broken: Paths that are reported already and are left out here.

    Sync: none
    """
    specs = specs_of(protocol)
    counts = dict(outer)
    for name, field in specs.items():
        if any(isinstance(option, ScalarSpec) and option.kind == "int" for option in field.options):
            value = read(obj, name)
            if type(value) is int and value >= 0:
                counts[name] = value
    found: list[Violation] = []
    bindings = dict(counts)
    arrays = [
        (field, spec, value)
        for field, spec, value in _arrays(obj, specs)
        if f"{path}.{field.name}" not in broken and array_fault(field, spec, value) is None
    ]
    for _, spec, value in arrays:
        for axis, size in zip(spec.shape.axes or (), value.shape, strict=False):
            bound = axis.binding(int(size)) if axis.size(bindings) is None else None
            if bound is not None:
                bindings[bound[0]] = bound[1]
    for field, spec, value in arrays:
        for dim, axis in enumerate(spec.shape.axes or ()):
            wanted = axis.size(bindings)
            if wanted is not None and wanted != value.shape[dim]:
                found.append(_shape_violation(f"{path}.{field.name}", axis, dim, value, bindings))
    found.extend(_device_violations(arrays, path))
    for name, field in specs.items():
        value = read(obj, name)
        for inner, inner_protocol, inner_path in _records(field, value, f"{path}.{name}"):
            if inner_path not in broken:
                found.extend(check_shapes(inner, inner_protocol, inner_path, counts, broken))
    return tuple(found)


def _arrays(obj: object, specs: Mapping[str, FieldSpec]) -> Iterator[tuple[FieldSpec, TensorSpec, Any]]:
    """Yield the arrays of a record with their specifications."""
    for name, field in specs.items():
        for option in field.options:
            if isinstance(option, TensorSpec):
                value = read(obj, name)
                if is_array(value):
                    yield field, option, value


def _records(field: FieldSpec, value: object, path: str) -> Iterator[tuple[object, type, str]]:
    """Yield the records inside a field's value."""
    if value is None or value is _ABSENT:
        return
    option = field.options[best_option(field.options, value) if len(field.options) > 1 else 0]
    if isinstance(option, RecordSpec):
        yield value, option.protocol, path
    elif isinstance(option, ListSpec) and isinstance(option.item, RecordSpec) and isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield item, option.item.protocol, f"{path}[{index}]"


def _shape_violation(path: str, axis: Axis, dim: int, value: Any, bindings: Mapping[str, int]) -> Violation:
    """Return the violation of one axis."""
    wanted = axis.size(bindings)
    return Violation(
        CODE_OF["shape"],
        path,
        f"{SENTENCE_OF['shape']}: {axis.text} at dim {dim}",
        expected=f"{wanted}   ({axis.derivation(bindings)})",
        got=f"{value.shape[dim]}   {describe(value)}",
        axes={name: bindings[name] for name in axis.names if name in bindings},
        help=HELP_OF["shape"],
    )


def _device_violations(arrays: list[tuple[FieldSpec, TensorSpec, Any]], path: str) -> Iterator[Violation]:
    """Yield the device arrays that do not live where most of the record's device arrays live."""
    resident = [(field, value) for field, _, value in arrays if field.residence == DEVICE]
    places = Counter(str(value.device) for _, value in resident)
    if len(places) < 2:
        return
    home = places.most_common(1)[0][0]
    for field, value in resident:
        if str(value.device) != home:
            yield Violation(
                CODE_OF["residence"],
                f"{path}.{field.name}",
                SENTENCE_OF["residence"],
                expected=f"{home}   (as {places[home]} other arrays of the record)",
                got=describe(value),
                help=HELP_OF["residence"],
            )
