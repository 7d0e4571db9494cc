"""Lengths and prefix sums as they come from a caller, made int32: nothing is truncated, and nothing wraps unseen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mla_contract.adapters.arrays import INT32, Int32Array, IntsLike, counting, ones, sealed
from mla_contract.adapters.fault import InvalidBatch, is_int

MOST = int(np.iinfo(INT32).max)
"""The largest length: positions and offsets are int32 in every kernel."""


def int32_lens(name: str, values: IntsLike) -> Int32Array:
    """Return a copy of a caller's lengths or offsets.

    Args:
        name: What they are, for the error.
        values: [n] ints in any width.

    Returns:
        [n] int32, writable.

    Raises:
        InvalidBatch: They are not ints, have another number of dims, or do not fit; names the row.

    Sync: none.
    """
    array = values if isinstance(values, np.ndarray) else _array_of(name, values)
    if array.dtype == INT32 and array.ndim == 1:
        return array.copy()
    if array.ndim != 1:
        raise InvalidBatch(name, {"expected": "one dim, a value for each request", "got": f"shape {array.shape}"})
    if array.dtype.kind not in "iu":
        raise InvalidBatch(name, {"expected": "ints", "got": array.dtype}, help="nothing is rounded here")
    narrow = array.astype(INT32)
    wraps = narrow != array
    if wraps.any():
        row = int(wraps.argmax())
        raise _too_large(name, row, int(array[row]))
    return narrow


def _array_of(name: str, values: Any) -> NDArray[Any]:
    """Return a sequence as an array; NumPy alone would make ints of True and floats of a mixture."""
    if isinstance(values, list | tuple):
        if set(map(type, values)) <= {int}:
            try:
                return np.array(values, dtype=np.int64)
            except OverflowError:
                row = next(row for row, value in enumerate(values) if abs(value) > MOST)
                raise _too_large(name, row, values[row]) from None
        for row, value in enumerate(values):
            if not is_int(value):
                raise InvalidBatch(name, {"expected": "an int", "got": f"{value!r}"}, row=row)
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InvalidBatch(name, {"expected": "ints on the host", "got": f"{type(values).__name__}: {error}"}) from None


def _too_large(name: str, row: int, value: int) -> InvalidBatch:
    return InvalidBatch(name, {"expected": f"at most {MOST}, to fit int32", "got": value}, row=row)


def validate_lens(lens: Int32Array, totals: Int32Array, offsets: Int32Array) -> Int32Array:
    """Return the cached tokens of each request, after checking lengths and their prefix sum together.

    Args:
        lens: [n] int32, query tokens.
        totals: [n] int32, sequence lengths.
        offsets: [n+1] int32, the prefix sum of ``lens`` as int32 holds it.

    Raises:
        InvalidBatch: A length is negative or above the sequence's, or the sum does not fit int32; names the row.

    Sync: none.
    """
    if lens.shape != totals.shape:
        raise InvalidBatch("seq_lens", {"expected": f"shape {lens.shape}", "got": f"shape {totals.shape}"})
    context = totals - lens
    # One pass finds every fault by its sign. The first sum beyond int32 is negative, since two ints below 2**31 make
    # less than 2**32; and where neither length is negative, their difference cannot wrap.
    signs = lens | context
    signs |= totals
    signs |= offsets[1:]
    if len(signs) and np.minimum.reduce(signs) < 0:
        raise _fault_of(lens, totals)
    return sealed(context)


def _fault_of(lens: Int32Array, totals: Int32Array) -> InvalidBatch:
    """Return the error for the first row at fault, computed again in int64."""
    broken = (lens < 0) | (totals < lens)
    if broken.any():
        row = int(broken.argmax())
        facts = {"expected": "0 <= query_len <= seq_len", "got": f"query_len={lens[row]} seq_len={totals[row]}"}
        return InvalidBatch("seq_lens", facts, row=row)
    sums = lens.cumsum(dtype=np.int64)
    row = int((sums > MOST).argmax())
    facts = {"expected": f"a sum of at most {MOST}, to fit int32", "got": f"{sums[row]} up to this row"}
    return InvalidBatch("query_lens", facts, row=row)


def lens_of(start_loc: Int32Array) -> Int32Array:
    """Return the lengths behind a prefix sum.

    Args:
        start_loc: [n+1] int32, tokens.

    Returns:
        [n] int32, read-only; the one shared array of ones where every length is 1.

    Raises:
        InvalidBatch: The prefix sum is empty, does not begin with 0, or falls; names the row.

    Sync: none.
    """
    if len(start_loc) == 0 or start_loc[0] != 0:
        raise InvalidBatch("query_start_loc", {"expected": "first offset 0", "got": start_loc[:1].tolist()})
    # Most steps decode one token a request: for those the lengths, and all that follows, are shared arrays.
    if start_loc.tobytes() == counting(len(start_loc)).tobytes():
        return ones(len(start_loc) - 1)
    lens = start_loc[1:] - start_loc[:-1]
    if len(lens) and np.minimum.reduce(lens | start_loc[1:]) < 0:
        row = int((start_loc[1:] < start_loc[:-1]).argmax())
        facts = {"expected": f"at least {start_loc[row]}", "got": int(start_loc[row + 1])}
        raise InvalidBatch("query_start_loc falls", facts, row=row, help="padding rows repeat the last offset")
    return sealed(lens)
