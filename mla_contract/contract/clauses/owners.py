"""Ragged arithmetic that several clauses share: prefix sums, and whether an array repeats row numbers by lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mla_contract.contract.step.context import Ints, smallest


def repeats_rows(stated: NDArray[Any], lens: Ints) -> bool:
    """Return whether ``stated`` is ``repeat(arange(n), lens)``: right at both ends of each row, and never falling."""
    ends = np.cumsum(lens)
    if len(stated) != (ends[-1] if len(ends) else 0):
        return False
    starts, rows = ends - lens, np.arange(len(lens))
    if len(lens) and smallest(lens) <= 0:
        live = lens > 0
        starts, ends, rows = starts[live], ends[live], rows[live]
    return (
        np.array_equal(stated[starts], rows)
        and np.array_equal(stated[ends - 1], rows)
        and not np.count_nonzero(stated[1:] < stated[:-1])
    )


def offsets(lens: Ints) -> Ints:
    """Return the prefix sum of ``lens``, from 0."""
    found = np.zeros(len(lens) + 1, np.int64)
    np.cumsum(lens, out=found[1:])
    return found
