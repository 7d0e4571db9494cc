"""Reasons that several operations share: each names the input and the limit."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from mla_contract.backends.kernels.cache_format import format_reason
from mla_contract.backends.kernels.triton.device import FLOATS, TritonDevice, find_device
from mla_contract.contract.schema.provider import IndexerCacheFormat, Operation
from mla_contract.contract.structure.arrays import is_array


def arrays_of(inputs: Operation[Any]) -> dict[str, Tensor]:
    """Return the arrays of an operation by name, those of nested records left out."""
    record: Any = inputs
    named = ((name, getattr(record, name)) for name in record.__dataclass_fields__)
    return {name: cast(Tensor, value) for name, value in named if is_array(value)}


def place_of(inputs: Operation[Any], *, interpreted: bool) -> TritonDevice | str:
    """Return the device that holds every array of an operation, or why there is none that kernels run on.

    Args:
        inputs: The operation.
        interpreted: Whether the CPU is one, by Triton's interpreter.
    """
    places = {name: array.device for name, array in arrays_of(inputs).items()}
    if not places:
        return f"{type(inputs).__name__} has no array: these kernels split their rows by themselves and need no plan"
    first, device = next(iter(places.items()))
    for name, other in places.items():
        if other != device:
            return f"{name} is on {other}, {first} on {device}: one device must hold all"
    if device.type == "cpu" and not interpreted:
        return f"{first} is on the CPU: Triton's kernels run on a GPU, its interpreter only when it is asked for"
    return find_device(device.type, device.index)


def type_reason(name: str, dtype: torch.dtype, device: TritonDevice) -> str | None:
    """Return why an element type cannot be read on a device."""
    if dtype in FLOATS or dtype in device.fp8:
        return None
    known = ", ".join(str(one) for one in (*FLOATS, *device.fp8))
    return f"{name} is {dtype}: on {device.arch} the kernels know {known}"


def array_reason(dtype: torch.dtype, **arrays: Tensor | None) -> str | None:
    """Return which array has not this element type, or gaps on its last axis."""
    for name, array in arrays.items():
        if array is not None and array.dtype is not dtype:
            return f"{name} is {array.dtype}, the kernel reads {dtype}"
    return packed_reason(**arrays)


def packed_reason(**arrays: Tensor | None) -> str | None:
    """Return which array has gaps on its last axis."""
    for name, array in arrays.items():
        if array is not None and array.shape[-1] > 1 and array.stride(-1) != 1:
            return f"{name} has strides {array.stride()}: its last axis must be packed"
    return None


def cache_reason(cache: Tensor, format: IndexerCacheFormat, device: TritonDevice) -> str | None:
    """Return why the indexer's cache cannot be read or written."""
    if cache.stride(2) != 1 or (cache.shape[1] > 1 and cache.stride(1) != cache.shape[2]):
        return f"cache has strides {cache.stride()}: the tokens of a page must be packed"
    reason = format_reason(format, cache)
    if reason is not None:
        return reason
    if format.fp8_dtype is None:
        return _float_reason("cache", cache.dtype)
    return type_reason("format.fp8_dtype", format.fp8_dtype, device)


def _float_reason(name: str, dtype: torch.dtype) -> str | None:
    """Return why unquantised keys cannot have an element type."""
    return None if dtype in FLOATS else f"{name} is {dtype}; known are {', '.join(map(str, FLOATS))}"


def page_views(cache: Tensor, format: IndexerCacheFormat) -> tuple[Tensor, Tensor | None]:
    """Return the pages as rows of values, and as rows of float32 for the scales behind them."""
    if format.fp8_dtype is None:
        return cache, None
    size = cache.shape[1] * cache.shape[2]
    flat = cache.as_strided((cache.shape[0], size), (cache.stride(0), 1))
    return flat.view(format.fp8_dtype), flat.view(torch.float32)
