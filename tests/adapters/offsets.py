"""Prefix sums, as the planners of prefills take them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mla_contract.adapters.arrays import Int32Array, prefix_sum


def start_loc_of(lens: Sequence[int]) -> Int32Array:
    """Return [n+1] int32, from 0 to the total."""
    return prefix_sum(np.asarray(lens))
