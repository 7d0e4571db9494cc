"""What happened around a build, as plain data: calls, reservations, slices, reuse, captured addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a family that must agree: the size call, the fill call and the kernel call."""

    name: str
    arguments: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Lane:
    """One workspace: a micro-batch, and a lane of users that never overlap."""

    ubatch: int
    lane: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Scratch memory: what was reserved, and the most that a reachable batch asks for.

    Attributes:
        reserved_bytes: Bytes reserved for each slot.
        needed_bytes: Bytes that the formula gives for each slot.
        slack: Largest accepted ratio of reserved to needed.
        rows: Rows of the context workspace after all clamps.
        alignment: Tokens to which its rows must be aligned.
        captured_slots: Slots that captured graphs use.
        eager_slots: Slots that eager users may use while a graph is replayed.
        sites: Places that ask for scratch after the lock.
        planned_sites: Places that the profiling run or the plan covers.
    """

    reserved_bytes: Mapping[Lane, int] = field(default_factory=dict)
    needed_bytes: Mapping[Lane, int] = field(default_factory=dict)
    slack: float = 2.0
    rows: int | None = None
    alignment: int | None = None
    captured_slots: frozenset[Lane] = frozenset()
    eager_slots: frozenset[Lane] = frozenset()
    sites: frozenset[str] | None = None
    planned_sites: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Child:
    """One micro-batch's slice: its batch, and the requests and tokens of the parent that it covers."""

    batch: Any
    request_slice: slice
    token_slice: slice


@dataclass(frozen=True, slots=True)
class Slices:
    """A batch and the slices made of it."""

    parent: Any
    children: tuple[Child, ...]


@dataclass(frozen=True, slots=True)
class Reuse:
    """A computed schedule that was taken from a cache: the inputs it was made of, and the inputs of now."""

    name: str
    stored: Mapping[str, object]
    current: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Address:
    """Where an array lives, as graph replay sees it."""

    data_ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class DeviceRead:
    """One read of device memory on the host.

    Attributes:
        what: How the source reads: ``item()``.
        places: ``file:line in function``, the innermost first, up to the builder's own.
    """

    what: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """A filled work plan: its six buffers, and what it was made for.

    Attributes:
        buffers: The record of the buffers.
        kv_indptr: int32 prefix sum of KV positions of each row.
        fold: Virtual rows of a token.
        granularity: KV positions of a block of the planner.
    """

    buffers: Any
    kv_indptr: Any
    fold: int = 1
    granularity: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTrace:
    """All records; whatever is None did not happen or is not known.

    Attributes:
        calls: Calls that must agree.
        workspace: Reservations.
        slices: Slices of the batch.
        reuse: Schedules taken from a cache.
        captured: Addresses of persistent fields when the graph was captured, by field path.
        alive: Other metadata that is alive together with this one.
        indexer: The indexer's record of the same layer.
        metadata_class: The class that the impl is written for.
        planned_work: The persistent work plan that the kernel gets.
        generation: Step that the metadata was built for, and step of the batch.
        device_reads: What the build read of the device; empty where it was watched and read nothing.
    """

    calls: tuple[Call, ...] | None = None
    workspace: Workspace | None = None
    slices: Slices | None = None
    reuse: tuple[Reuse, ...] | None = None
    captured: Mapping[str, Address] | None = None
    alive: tuple[Any, ...] | None = None
    indexer: Any = None
    metadata_class: type | None = None
    planned_work: PlannedWork | None = None
    generation: tuple[int, int] | None = None
    device_reads: tuple[DeviceRead, ...] | None = None


def addresses_of(metadata: object, names: tuple[str, ...]) -> dict[str, Address]:
    """Return the addresses of the named fields of a record, as plain numbers.

    Sync: none
    """
    found = {}
    for name in names:
        array: Any = getattr(metadata, name, None)
        if array is not None:
            dtype = str(array.dtype).rpartition(".")[2]
            found[name] = Address(array.data_ptr(), tuple(array.shape), tuple(array.stride()), dtype)
    return found


NO_TRACE = BuildTrace()
"""Nothing is known."""
