"""Mechanical faults: for each field of a record, and of the records inside it, whatever its annotation forbids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from mla_contract.contract.schema.aiter import AiterSparseMetadata
from mla_contract.contract.schema.batch import CommonBatch
from mla_contract.contract.schema.core import MLAMetadata
from mla_contract.contract.schema.indexer import IndexerMetadata
from mla_contract.contract.schema.residence import DEVICE, HOST
from mla_contract.contract.schema.sparse import SparseMLAMetadata
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.structure.faults import CODE_OF
from mla_contract.contract.structure.shapes import best_option
from mla_contract.contract.structure.specs import (
    FieldSpec,
    ListSpec,
    RecordSpec,
    ScalarSpec,
    TensorSpec,
    specs_of,
)
from mla_contract.testing import records
from tests.lab.faults import Change, PlantedFault

PROTOCOLS: dict[type, type] = {
    records.PlainDense: MLAMetadata,
    records.PlainSparse: SparseMLAMetadata,
    records.PlainAiter: AiterSparseMetadata,
    records.PlainIndexer: IndexerMetadata,
}
"""The Protocol of each record: declared, so that a missing field cannot make it look like another record."""

Steps = tuple[str | int, ...]
"""The way from the subject to a record: attribute names and list indexes."""


@dataclass(frozen=True, slots=True)
class Place:
    """One field of one record; ``owner`` is the class that states it, ``root`` that of the outermost record."""

    steps: Steps
    protocol: type
    spec: FieldSpec
    value: Any
    owner: str
    root: str

    @property
    def path(self) -> str:
        """Return the path as reports write it."""
        return f"{self.owner_path}.{self.spec.name}"

    @property
    def owner_path(self) -> str:
        """Return the path of the record."""
        text = self.root
        for step in self.steps[1:]:
            text += f"[{step}]" if isinstance(step, int) else f".{step}"
        return text


def field_faults(base: str, make: Callable[[], StepContext]) -> Iterator[PlantedFault]:
    """Yield every mechanical fault of a subject's batch and metadata."""
    protocol = PROTOCOLS[type(make().metadata)]
    for place in places(make()):
        for kind, code, change in _changes(place):
            also = _twins(place) if kind == "device" else ()
            yield PlantedFault(kind, base, place.owner, place.path, (CODE_OF[code],), make, change, protocol, also)


def places(subject: StepContext) -> Iterator[Place]:
    """Yield the fields of a subject's batch and metadata, nested records included; of a list, its last record."""
    yield from _places(subject.batch, CommonBatch, ("batch",), type(subject.batch).__name__)
    yield from _places(
        subject.metadata, PROTOCOLS[type(subject.metadata)], ("metadata",), type(subject.metadata).__name__
    )


def _places(record: Any, protocol: type, steps: Steps, root: str) -> Iterator[Place]:
    for name, spec in specs_of(protocol).items():
        value = getattr(record, name)
        yield Place(steps, protocol, spec, value, declaring_class(type(record), name), root)
        if value is None:
            continue
        option = spec.options[best_option(spec.options, value) if len(spec.options) > 1 else 0]
        if isinstance(option, RecordSpec):
            yield from _places(value, option.protocol, (*steps, name), root)
        elif isinstance(option, ListSpec) and isinstance(option.item, RecordSpec) and value:
            last = len(value) - 1
            yield from _places(value[last], option.item.protocol, (*steps, name, last), root)


def declaring_class(cls: type, name: str) -> str:
    """Return the name of the class that states a field first, so that an inherited field counts once."""
    return next(
        (base.__name__ for base in reversed(cls.__mro__) if name in vars(base).get("__annotations__", {})), cls.__name__
    )


def _twins(place: Place) -> tuple[str, ...]:
    """Return the other device arrays of a record that has two: a report cannot know which of them moved."""
    return tuple(
        f"{place.owner_path}.{name}"
        for name, spec in specs_of(place.protocol).items()
        if spec.residence == DEVICE and name != place.spec.name
    )


def _changes(place: Place) -> Iterator[tuple[str, str, Change]]:
    """Yield (kind, name of the code, change) for each fault that the field's annotation forbids."""
    spec, value = place.spec, place.value
    yield "drop", "missing", _replace_record(place, lambda record: without(record, spec.name))
    yield "raises", "unreadable", _replace_record(place, lambda record: raising(record, spec.name))
    if not spec.optional:
        yield "None", "none", _set(place, lambda old: None)
    if value is None:
        return
    option = spec.options[best_option(spec.options, value) if len(spec.options) > 1 else 0]
    if isinstance(option, TensorSpec):
        yield from _array_changes(place, option)
    elif isinstance(option, ScalarSpec):
        yield "wrong type", "type", _set(place, lambda old: f"{old}")
        if option.kind == "int":
            yield "array for int", "type", _set(place, _as_array)
            yield "float for int", "type", _set(place, float)
            yield "negative", "negative", _set(place, lambda old: -1 - old)
    elif isinstance(option, ListSpec):
        yield "wrong type", "type", _set(place, lambda old: dict(enumerate(old)))
    else:
        yield "wrong type", "type", _set(place, lambda old: object())


def _array_changes(place: Place, option: TensorSpec) -> Iterator[tuple[str, str, Change]]:
    import torch

    array, axes = place.value, option.shape.axes
    yield "list for array", "tensor_type", _set(place, lambda old: old.tolist())
    if option.dtype is not None:
        wrong = torch.int64 if array.dtype != torch.int64 else torch.int32
        yield "wrong dtype", "dtype", _set(place, lambda old: old.to(wrong))
    if axes is not None:
        yield "extra axis", "rank", _set(place, lambda old: old.unsqueeze(0))
        if array.dim() and array.shape[-1] > 1 and place.spec.residence != HOST:
            yield "strided", "strides", _set(place, lambda old: torch.stack([old, old], -1)[..., 0])
    devices = [spec for spec in specs_of(place.protocol).values() if spec.residence == DEVICE]
    if place.spec.residence is not None and (place.spec.residence != DEVICE or len(devices) > 1):
        yield "device", "residence", _set(place, lambda old: old.to("meta"))


def _as_array(value: int) -> Any:
    import torch

    return torch.tensor(value)


def _target(subject: StepContext, steps: Steps) -> Any:
    """Return the record at the end of the steps."""
    target: Any = subject
    for step in steps:
        target = target[step] if isinstance(step, int) else getattr(target, step)
    return target


def _set(place: Place, change: Callable[[Any], Any]) -> Change:
    """Return the change of one field's value."""

    def apply(subject: StepContext) -> None:
        record, name = _target(subject, place.steps), place.spec.name
        setattr(record, name, change(getattr(record, name)))

    return apply


def _replace_record(place: Place, change: Callable[[Any], Any]) -> Change:
    """Return the change of a whole record."""

    def apply(subject: StepContext) -> StepContext | None:
        new = change(_target(subject, place.steps))
        *parents, last = place.steps
        if not parents:
            return replace(subject, **{str(last): new})
        parent = _target(subject, tuple(parents))
        if isinstance(last, int):
            parent[last] = new
        else:
            setattr(parent, last, new)
        return None

    return apply


def without(record: Any, name: str) -> Any:
    """Return a copy of a record, of a class of the same name, that does not have the attribute."""
    bare = type(type(record).__name__, (), {})()
    vars(bare).update({key: value for key, value in vars(record).items() if key != name})
    return bare


def raising(record: Any, name: str) -> Any:
    """Return a copy of a record in which reading the attribute raises."""

    def read(self: object) -> object:
        raise RuntimeError(name)

    bare = type(type(record).__name__, (), {name: property(read)})()
    vars(bare).update({key: value for key, value in vars(record).items() if key != name})
    return bare
