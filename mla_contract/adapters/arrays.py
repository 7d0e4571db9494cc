"""Host arrays of a plan: made once, then read-only, so that two backends cannot see different plans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Int32Array: TypeAlias = NDArray[np.int32]
Int64Array: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
INT32 = np.dtype(np.int32)
"""The dtype itself: comparing with the type makes one anew each time."""
IntsLike: TypeAlias = "Sequence[int] | NDArray[Any]"
"""Ints on the host, in any width; a plan narrows them to int32 and never keeps the caller's array."""


def sealed(array: NDArray[Any]) -> Int32Array:
    """Return the array as int32, read-only; an int32 array is sealed in place.

    Sync: none.
    """
    narrow = array if array.dtype == INT32 else array.astype(INT32)
    narrow.setflags(write=False)
    return narrow


def sealed64(array: Int64Array) -> Int64Array:
    """Return the array itself, read-only.

    Sync: none.
    """
    array.setflags(write=False)
    return array


# Lengths repeat from step to step: requests and tokens of a captured graph, of a full batch. 512 of them, with the
# largest batches of 16,384 tokens, are 32 MiB at most.
@lru_cache(maxsize=512)
def counting(length: int) -> Int32Array:
    """Return 0, 1, and so on: one and the same array for one length, so that nobody copies it twice.

    Sync: none.
    """
    return sealed(np.arange(length, dtype=INT32))


@lru_cache(maxsize=512)
def ones(length: int) -> Int32Array:
    """Return ones: one and the same array for one length.

    Sync: none.
    """
    return sealed(np.ones(length, dtype=INT32))


def owners_of(lens: Int32Array) -> Int32Array:
    """Return the index of the owner of each element, for owners of these lengths: [sum of lens] int32, computed anew.

    Sync: none.
    """
    return sealed(counting(len(lens)).repeat(lens))


def prefix_sum(lens: NDArray[Any]) -> Int32Array:
    """Return the prefix sum of lengths, with a leading 0.

    Args:
        lens: [n] ints whose total fits int32.

    Returns:
        [n+1] int32, read-only.

    Sync: none.
    """
    sums = np.zeros(len(lens) + 1, dtype=INT32)
    np.add.accumulate(lens, dtype=INT32, out=sums[1:])
    sums.setflags(write=False)
    return sums


def wide_prefix_sum(lens: NDArray[Any]) -> list[int]:
    """Return the prefix sum of lengths, with a leading 0, as Python ints: totals over all contexts may exceed int32.

    Args:
        lens: [n] ints.

    Returns:
        n+1 ints.

    Sync: none.
    """
    sums: list[int] = np.add.accumulate(lens, dtype=np.int64).tolist()
    sums.insert(0, 0)
    return sums


def padded(array: NDArray[Any], length: int, value: int) -> NDArray[Any]:
    """Return the array, lengthened to ``length`` with ``value``; the array itself if nothing is missing.

    Sync: none.
    """
    if len(array) >= length:
        return array
    longer = np.full(length, value, dtype=array.dtype)
    longer[: len(array)] = array
    return longer
