"""Decode records with the members that some backends add to the dense one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mla_contract.testing.records import PlainDecode

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class PlainSplitDecode(PlainDecode):
    """A decode record with a split schedule, as FlashMLA's."""

    num_splits: Tensor | None = None


@dataclass
class PlainPagedDecode(PlainDecode):
    """A decode record with paged tables, as aiter's."""

    paged_kv_indptr: Tensor | None = None
    paged_kv_last_page_len: Tensor | None = None
