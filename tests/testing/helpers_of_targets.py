"""A helper in which a device read hides."""

from __future__ import annotations

from torch import Tensor


def longest_of(lens: Tensor) -> int:
    """Return the longest length."""
    return int(lens.max())
