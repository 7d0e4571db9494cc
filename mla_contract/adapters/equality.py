"""Equality of records that hold arrays: a bool, as for any other record."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

RecordType = TypeVar("RecordType", bound=type)


def compared_by_value(cls: RecordType) -> RecordType:
    """Give a named tuple or a dataclass an equality that compares arrays whole.

    Tuples and dataclasses compare member by member, and an array answers with an array, of which Python makes no bool.
    Records of two types are never equal, and none can be hashed: arrays have no hash.
    """
    for name, method in (("__eq__", _equal), ("__ne__", _unequal), ("__hash__", None)):
        setattr(cls, name, method)
    return cls


def _equal(one: Any, other: object) -> bool:
    """Return whether two records are of one type and hold the same."""
    if one is other:
        return True
    return type(one) is type(other) and all(map(_same, _members(one), _members(other)))


def _unequal(one: Any, other: object) -> bool:
    return not _equal(one, other)


def _members(record: Any) -> tuple[Any, ...]:
    if is_dataclass(record):
        return tuple(getattr(record, field.name) for field in fields(record))
    return tuple(record)


def _same(one: Any, other: Any) -> bool:
    """Return whether two members are the same; arrays are if type, shape and elements are."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return False
    return bool(one == other)
