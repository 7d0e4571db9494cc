"""A host tensor on NumPy with the few operations that planners use, so that a trial needs no torch.

An operation that is missing here raises ``UnsupportedError``, which no foreign ``except`` clause catches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_NAMES = {"dim": "axis", "keepdim": "keepdims"}
_DTYPES = {
    "int32": np.int32, "int": np.int32, "int64": np.int64, "long": np.int64, "bool": np.bool_, "float32": np.float32,
    "float": np.float32,
}  # fmt: skip


class UnsupportedError(BaseException):
    """An operation that the stand-in does not have."""


class HostTensor:
    """An array that answers as a tensor on the host."""

    __hash__ = object.__hash__

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    def __getattr__(self, name: str) -> Any:
        if name in _DTYPES:
            return lambda: HostTensor(self.array.astype(_DTYPES[name]))
        if name in _FUNCTIONS:
            return lambda *args, **kwargs: _FUNCTIONS[name](self, *args, **kwargs)
        raise UnsupportedError(f"Tensor.{name}")

    def __getitem__(self, key: Any) -> HostTensor:
        return HostTensor(self.array[_plain(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.array[_plain(key)] = _plain(value)

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[HostTensor]:
        return (HostTensor(item) for item in self.array)

    def __bool__(self) -> bool:
        return bool(self.array)

    def __int__(self) -> int:
        return int(self.array)

    __index__ = __int__

    def __invert__(self) -> HostTensor:
        return HostTensor(~self.array)

    def __neg__(self) -> HostTensor:
        return HostTensor(-self.array)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape."""
        return self.array.shape

    @property
    def dtype(self) -> Any:
        """Return the NumPy type of the elements."""
        return self.array.dtype.type

    device = "cpu"
    is_cuda = False

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.array.ndim

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or one length of it."""
        return self.shape if dim is None else self.shape[dim]

    def to(self, *args: Any, **kwargs: Any) -> HostTensor:
        """Return the tensor with another type of element; devices are ignored."""
        dtype = next((a for a in (*args, *kwargs.values()) if isinstance(a, type)), self.array.dtype)
        return HostTensor(self.array.astype(dtype))

    def view(self, *shape: Any) -> HostTensor:
        """Return the tensor in another shape."""
        return HostTensor(self.array.reshape(*shape))

    reshape = view

    def unsqueeze(self, dim: int) -> HostTensor:
        """Return the tensor with a dimension of length 1 more."""
        return HostTensor(np.expand_dims(self.array, dim))

    def item(self) -> Any:
        """Return the one element."""
        return self.array.item()

    def tolist(self) -> Any:
        """Return the elements as lists."""
        return self.array.tolist()

    def numpy(self) -> Any:
        """Return the array."""
        return self.array

    def numel(self) -> int:
        """Return the number of elements."""
        return int(self.array.size)

    def cpu(self) -> HostTensor:
        """Return the tensor itself."""
        return self

    contiguous = cpu


def _operator(name: str) -> Callable[[HostTensor, Any], Any]:
    def apply(self: HostTensor, other: Any) -> Any:
        result = getattr(self.array, name)(_plain(other))
        return result if result is NotImplemented else HostTensor(result)

    return apply


for _name in (
    *(f"__{p}{n}__" for n in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor") for p in ("", "r")),
    *(f"__{n}__" for n in ("lt", "le", "gt", "ge", "eq", "ne")),
):
    setattr(HostTensor, _name, _operator(_name))


def _plain(value: Any) -> Any:
    """Return a value with tensors replaced by arrays."""
    if isinstance(value, HostTensor):
        return value.array
    if isinstance(value, tuple | list):
        return type(value)(_plain(item) for item in value)
    return value


def _function(name: str) -> Callable[..., Any]:
    def apply(*args: Any, **kwargs: Any) -> HostTensor:
        known = {_NAMES.get(key, key): _plain(value) for key, value in kwargs.items() if key not in _IGNORED}
        return HostTensor(getattr(np, name)(*(_plain(arg) for arg in args), **known))

    return apply


_IGNORED = frozenset({"device", "pin_memory"})
_NUMPY = "all any argmax argmin argsort clip cumsum diff flatnonzero max maximum min minimum sum where"
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _function(name) for name in _NUMPY.split()},
    "clamp": _function("clip"),
    "clone": _function("copy"),
    "cat": _function("concatenate"),
}
_CREATORS: dict[str, Callable[..., Any]] = {
    **{name: _function(name) for name in ("arange", "zeros", "ones", "full", "empty")},
    "tensor": _function("array"),
}


class HostTorch:
    """The module ``torch``, as far as planners use it."""

    Tensor = HostTensor

    def __getattr__(self, name: str) -> Any:
        found = _DTYPES.get(name) or _CREATORS.get(name) or _FUNCTIONS.get(name)
        if found is None:
            raise UnsupportedError(f"torch.{name}")
        return found
