"""Which device arrays a builder reads on the host, found on a machine where the host is the device.

Every operation of torch is watched: what an array of the batch that is declared as ``Device`` flows into is followed by
its memory, so that a read is seen in whatever helper it hides, and through buffers that the builder keeps. Reads are
recorded, not answered with an error: one run says all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import extract_tb
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mla_contract.contract.schema.batch import CommonBatch
from mla_contract.contract.schema.residence import DEVICE
from mla_contract.contract.step.trace import DeviceRead
from mla_contract.contract.structure.specs import tensors_of

_METHODS = {
    Tensor.cpu: "cpu()",
    Tensor.numpy: "numpy()",
    Tensor.tolist: "tolist()",
    Tensor.__array__: "numpy.asarray()",
    Tensor.__contains__: "in",
    Tensor.storage: "storage()",
    Tensor.__repr__: "repr()",
    Tensor.__dlpack__: "from_dlpack()",
}
"""Methods that read elements and, on a host array, call no operation."""
_OPERATIONS = {
    "_local_scalar_dense": "item()",
    "item": "item()",
    "is_nonzero": "bool()",
    "equal": "equal()",
    "allclose": "allclose()",
    "tensor_split": "tensor_split()",
    "nonzero": "nonzero()",
    "nonzero_numpy": "nonzero()",
    "argwhere": "argwhere()",
    "masked_select": "masked_select()",
    "unique_dim": "unique()",
    "unique_consecutive": "unique_consecutive()",
    "_unique": "unique()",
    "_unique2": "unique()",
    "bincount": "bincount()",
    "histc": "histc()",
}
"""Operations whose result, or its shape, the host must wait for."""
_OWN = (__file__, str(Path(__file__).with_name("conformance.py")))
_LIBRARIES = tuple(str(Path(str(module.__file__)).parent) for module in (torch, np))


@dataclass(slots=True)
class DeviceMemory:
    """The memory of device arrays, and who read it on the host.

    Attributes:
        reads: Every read so far, each place once.
    """

    reads: dict[DeviceRead, None] = field(default_factory=dict)
    # Storages are kept alive: one that is freed would give its identity to a host array.
    _storages: dict[int, Any] = field(default_factory=dict)

    def add(self, value: Any) -> None:
        """Take the memory of an array, or of all arrays of a nested value, for the device's."""
        for one in tree_leaves(value):
            if isinstance(one, Tensor) and one.layout is torch.strided:
                storage = one.untyped_storage()
                self._storages[storage._cdata] = storage

    def holds(self, value: Any) -> bool:
        """Return whether any array of a nested value lies there."""
        return any(self._has(one) for one in tree_leaves(value))

    def _has(self, one: Any) -> bool:
        return (
            isinstance(one, Tensor) and one.layout is torch.strided and one.untyped_storage()._cdata in self._storages
        )

    def add_batch(self, batch: Any) -> None:
        """Take every field of a batch that the contract declares to be on the device."""
        for one, spec in tensors_of(CommonBatch):
            if spec.residence == DEVICE:
                self.add(getattr(batch, one.name, None))

    def note(self, what: str) -> None:
        """Record a read that happens now, with the place in the source that makes it."""
        self.reads[DeviceRead(what, tuple(_places()))] = None

    def note_error(self, error: BaseException) -> None:
        """Record the wait that torch answered with an error, unless the read that waited is recorded already."""
        frames = [one for one in extract_tb(error.__traceback__) if _is_authors(one.filename)]
        places = tuple(f"{one.filename}:{one.lineno} in {one.name}" for one in reversed(frames))
        if not any(read.places[:1] == places[:1] for read in self.reads):
            self.reads[DeviceRead("an operation that waits", places)] = None


def _is_authors(file: str) -> bool:
    """Return whether a file is neither a library's nor the suite's own."""
    return not file.startswith((*_LIBRARIES, "<")) and file not in _OWN


def _places() -> Iterator[str]:
    """Yield the places that lead to a read, the innermost first, up to the call of the builder."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not watched_call.__code__:
        file = frame.f_code.co_filename
        if _is_authors(file):
            yield f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back


class _Functions(TorchFunctionMode):
    """Watches methods that read elements without an operation."""

    def __init__(self, memory: DeviceMemory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _METHODS.get(func)
        if name is not None and args and self._memory.holds(args[0]):
            self._memory.note(name)
            with _Silent(self._memory):
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Silent:
    """Keeps what a recorded read does inside from being recorded again."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory, self._before = memory, dict(memory.reads)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self._memory.reads.clear()
        self._memory.reads.update(self._before)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows device arrays through operations, and watches those that the host must wait for."""

    def __init__(self, memory: DeviceMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._memory.holds((args, kwargs)):
            return func(*args, **kwargs)
        name = _waits(func, args, kwargs)
        if name is not None:
            self._memory.note(name)
        result = func(*args, **kwargs)
        self._memory.add(result)
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._memory.add(value)
        return result


def _waits(func: Any, args: Any, kwargs: Any) -> str | None:
    """Return how a reader of the source calls an operation that the host must wait for; None for any other."""
    name = func._schema.name.partition("::")[2]
    if name == "repeat_interleave" and kwargs.get("output_size") is None:
        return "repeat_interleave() without output_size"
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        given = [one for one in args[1] if one is not None]
        masks = [one for one in given if one.dtype in (torch.bool, torch.uint8)]
        # One number for all places of one mask is filled in by the device itself.
        filled = name != "index" and len(given) == 1 and args[2].numel() == 1
        return "an index by a mask" if masks and not filled else None
    if name == "tensor_split" and not isinstance(args[1], Tensor):
        return None
    return _OPERATIONS.get(name)


def is_wait(error: BaseException) -> bool:
    """Return whether torch refused to wait for a GPU."""
    return "synchronizing" in str(error)


def on_device(batch: Any, device: Any) -> Any:
    """Return a batch whose ``Device`` fields are on a device."""
    if str(device) == "cpu":
        return batch
    fields = {one.name for one, spec in tensors_of(CommonBatch) if spec.residence == DEVICE}
    arrays = {name: getattr(batch, name, None) for name in fields}
    return replace(batch, **{name: one.to(device) for name, one in arrays.items() if isinstance(one, Tensor)})


def watched_call(build: Callable[[Any], Any], batch: Any, memory: DeviceMemory) -> Any:
    """Return what a builder makes of a batch, and record in ``memory`` what it reads of the device meanwhile.

    On a GPU torch itself watches, and reads that no operation shows are found as well; the first ends the build.

    Raises:
        RuntimeError: A build on a GPU waits for it, where no read that is known here does.
    """
    memory.add_batch(batch)
    with ExitStack() as stack:
        if batch.seq_lens.is_cuda:
            stack.callback(torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode())
            torch.cuda.set_sync_debug_mode("error")
        stack.enter_context(_Functions(memory))
        stack.enter_context(_Operations(memory))
        return build(batch)
