"""The reference as a provider: why it cannot run, and which function runs what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from mla_contract.backends.kernels.cache_format import format_reason
from mla_contract.backends.kernels.describe import describe_inputs
from mla_contract.backends.kernels.reference.attention import sparse_attention
from mla_contract.backends.kernels.reference.logits import chunk_logits, paged_logits
from mla_contract.backends.kernels.reference.pages import gather_keys, write_keys
from mla_contract.backends.kernels.reference.quantise import FP8_MAX
from mla_contract.backends.kernels.reference.selection import map_slots, topk_rows
from mla_contract.contract.schema.provider import (
    ChunkLogits,
    GatherIndexerK,
    IndexerCacheFormat,
    MapSlots,
    Operation,
    PagedLogits,
    SparseAttention,
    TopkRows,
    WriteIndexerK,
)
from mla_contract.errors import NoProvider

R = TypeVar("R")

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

_RUN: Mapping[type, Callable[[Any], Any]] = MappingProxyType(
    {
        WriteIndexerK: write_keys,
        GatherIndexerK: gather_keys,
        ChunkLogits: chunk_logits,
        PagedLogits: paged_logits,
        TopkRows: topk_rows,
        MapSlots: map_slots,
        SparseAttention: sparse_attention,
    }
)


class ReferenceProvider:
    """Plain torch: slow, complete and deterministic; reads device memory."""

    name = "reference"

    def reason(self, inputs: Operation[Any]) -> str | None:
        """Return why the reference cannot run ``inputs``, or None.

        Sync: none
        """
        if type(inputs) not in _RUN:
            return f"{type(inputs).__name__}: the reference needs no work plan"
        if isinstance(inputs, WriteIndexerK | GatherIndexerK | PagedLogits):
            return _cache_reason(inputs.format, inputs.cache)
        if isinstance(inputs, ChunkLogits):
            return _dtype_reason("q", inputs.q)
        if isinstance(inputs, SparseAttention):
            return _dtype_reason("q", inputs.q) or _dtype_reason("kv_cache", inputs.kv_cache)
        return None

    def run(self, inputs: Operation[R]) -> R:
        """Run the operation. Sync: reads device memory.

        Raises:
            NoProvider: If ``reason`` gives one.
        """
        reason = self.reason(inputs)
        if reason is not None:
            raise NoProvider(describe_inputs(inputs), {self.name: reason})
        result: R = _RUN[type(inputs)](inputs)
        return result


def _dtype_reason(name: str, array: torch.Tensor) -> str | None:
    """Return why an element type is unknown."""
    if array.dtype in FLOATS or array.dtype in FP8_MAX:
        return None
    return f"{name} is {array.dtype}; known are float32, bfloat16, float16 and the two e4m3 flavours"


def _cache_reason(format: IndexerCacheFormat, cache: torch.Tensor) -> str | None:
    """Return why a cache cannot be read or written."""
    if format.fp8_dtype is not None and format.fp8_dtype not in FP8_MAX:
        return f"fp8_dtype is {format.fp8_dtype}; known are the two e4m3 flavours"
    return format_reason(format, cache) or (_dtype_reason("cache", cache) if format.fp8_dtype is None else None)
