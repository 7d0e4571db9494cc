"""Persistent work of the attention kernel: one configuration, the sizes it asks for, and the buffers that hold a plan.

The size call, the fill call and the kernel call all get the same configuration record, so they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Int32, UInt64
    from torch import Tensor, dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkConfig:
    """What the size call, the fill call and the kernel call of persistent work must agree on.

    Attributes:
        num_rows: Rows of one token each, padding included.
        num_heads: Query heads of this rank, before any padding that a provider does.
        q_dtype: Element type of the queries that the kernel gets.
        kv_dtype: Element type of the cache that the kernel gets.
        with_lse: Whether the kernel will be asked for the LSE (sinks need it, too).
        max_split_per_batch: Budget of splits: compute units used are at most this times the rows; -1 for no bound.
        has_empty_rows: Whether a row may have no entry; False is a promise.
    """

    num_rows: int
    num_heads: int
    q_dtype: dtype
    kv_dtype: dtype
    with_lse: bool = False
    max_split_per_batch: int = -1
    has_empty_rows: bool = True


ArraySize = tuple[tuple[int, ...], "dtype"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSizes:
    """Shape and element type of the six work buffers."""

    work_meta_data: ArraySize
    work_indptr: ArraySize
    work_info_set: ArraySize
    reduce_indptr: ArraySize
    reduce_final_map: ArraySize
    reduce_partial_map: ArraySize


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkBuffers:
    """Persistent work of one configuration; satisfies the aiter-work tier.

    ``work_meta_data`` holds the addresses of ``work_indptr`` and ``work_info_set``: the three live and die together,
    which holding this record ensures. The last three arrays are the tables that the kernel gets with this work; a fill
    writes ``kv_indptr``, and it may differ from the metadata's where rows are empty.
    """

    config: WorkConfig
    work_meta_data: UInt64[Tensor, "2"]
    work_indptr: Int32[Tensor, "num_units+1"]
    work_info_set: Int32[Tensor, "work_capacity 8"]
    reduce_indptr: Int32[Tensor, "num_tiles+1"]
    reduce_final_map: Int32[Tensor, "num_tiles 2"]
    reduce_partial_map: Int32[Tensor, "partial_capacity"]
    qo_indptr: Int32[Tensor, "num_rows+1"]
    kv_indptr: Int32[Tensor, "num_rows+1"]
    kv_last_page_lens: Int32[Tensor, "num_rows"]
