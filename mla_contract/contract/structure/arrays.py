"""What can be said of an array without reading an element: element type, rank, residence, strides.

Arrays are duck-typed: whatever has ``dtype``, ``shape``, ``device``, ``stride`` and ``data_ptr`` is one. No array
library is imported.
"""

from __future__ import annotations

from typing import Any

from mla_contract.contract.schema.residence import HOST
from mla_contract.contract.structure.specs import FieldSpec, TensorSpec

_ARRAY_MEMBERS = ("dtype", "shape", "device", "stride", "data_ptr")


def is_array(value: object) -> bool:
    """Return whether ``value`` looks like a tensor."""
    return not isinstance(value, type) and all(hasattr(value, name) for name in _ARRAY_MEMBERS)


def is_dtype(value: object) -> bool:
    """Return whether ``value`` names an element type."""
    return type(value).__name__ == "dtype"


def dtype_name(value: Any) -> str:
    """Return an array's element type without a library prefix."""
    return str(value.dtype).rpartition(".")[2]


def describe(value: object) -> str:
    """Return a short text of a value: dtype, shape and device of an array, the value itself when it is small."""
    if is_array(value):
        array: Any = value
        return f"{dtype_name(array)}[{', '.join(map(str, array.shape))}] on {array.device}"
    if value is None or isinstance(value, bool | int | float | str | slice):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {len(value)}"
    return f"an object of {type(value).__name__}"


def array_fault(field: FieldSpec, spec: TensorSpec, value: Any) -> tuple[str, str] | None:
    """Return (kind, expected) of the first fault of an array that needs no other field, or None.

    Kinds: ``tensor_type``, ``dtype``, ``rank``, ``residence``, ``strides``.
    """
    if not is_array(value):
        return "tensor_type", field.annotation
    if spec.dtype is not None and dtype_name(value) != spec.dtype:
        return "dtype", spec.dtype
    axes = spec.shape.axes
    if axes is not None and len(value.shape) != len(axes):
        return "rank", f"{len(axes)} axes: {spec.shape.text}"
    if field.residence == HOST and value.device.type != "cpu":
        return "residence", "an array on the host"
    # What stays on the host is indexed or copied from there: only kernels need rows without gaps.
    on_host = field.residence == HOST
    if axes is not None and not on_host and value.shape and value.shape[-1] > 1 and value.stride(-1) != 1:
        return "strides", "stride 1 along the last axis"
    return None
