"""Ragged arithmetic that several clauses share: prefix sums, and whether an array repeats row numbers by lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mla_contract.contract.step.context import Ints, smallest


def equal(own: NDArray[Any], wanted: NDArray[Any]) -> bool:
    """Return whether two arrays have one shape and the same numbers; faster than NumPy's test on short ones."""
    return own.shape == wanted.shape and not np.count_nonzero(own != wanted)


def repeats_rows(stated: NDArray[Any], lens: Ints) -> bool:
    """Return whether ``stated`` is ``repeat(arange(n), lens)``.

    It is where both ends of each row are right, and it changes as often as rows follow one another: between the end of
    a row and the start of the next lies one change, so that none is left for the inside of a row.
    """
    ends = np.add.accumulate(lens)
    if len(stated) != (ends[-1] if len(ends) else 0):
        return False
    starts, rows = ends - lens, np.arange(len(lens))
    if len(lens) and smallest(lens) <= 0:
        live = lens > 0
        starts, ends, rows = starts[live], ends[live], rows[live]
    if not equal(stated[starts], rows):
        return False
    if len(stated) == len(rows):
        return True
    return equal(stated[ends - 1], rows) and np.count_nonzero(stated[1:] != stated[:-1]) == len(rows) - 1


def offsets(lens: Ints) -> Ints:
    """Return the prefix sum of ``lens``, from 0."""
    found = np.zeros(len(lens) + 1, np.int64)
    np.cumsum(lens, out=found[1:])
    return found
