"""A process in which vLLM's runners and builders work without a GPU: Triton's interpreter, on one thread.

It must be prepared before vLLM is imported, so the runs stand in a process of their own.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from typing import Any

RELEASES = ("0.26", "0.28", "0.30", "0.31", "0.32", "0.33")
"""Minor releases whose runners are driven here: the attributes that they read are those of these."""

COMPUTE_UNITS = 8

NATIVE_WIDTHS = (1, 2, 4)
"""Decode tokens for which the indexer has a kernel, as on Hopper; a step of another width has none."""


class ActiveDriver:
    """Stands in for a Triton driver: vLLM asks only whether there is an active one."""

    @staticmethod
    def is_active() -> bool:
        """Return True."""
        return True


class Stream:
    """Stands in for a stream of the device: a CPU's work is done when a call returns."""

    def synchronize(self) -> None:
        """Do nothing."""


class KernelSchedule:
    """Stands in for FlashMLA's schedule, which its kernel fills at the first call."""


@dataclass(frozen=True, slots=True)
class TritonBackend:
    """Stands in for an entry of ``triton.backends.backends``, of which a CPU has none."""

    driver: type = ActiveDriver
    compiler: None = None


def missing() -> str | None:
    """Return why runners cannot be driven here, or None."""
    for package in ("torch", "triton", "vllm"):
        if find_spec(package) is None:
            return f"{package} is not installed"
    from mla_contract.profiles.installed import installed_release

    release = installed_release() or ""
    known = release.startswith(tuple(f"{minor}." for minor in RELEASES))
    return None if known else f"the stand-ins are those of vLLM {', '.join(RELEASES)}, not {release}"


def prepare() -> None:
    """Turn on the interpreter, and have vLLM take it for a device.

    Raises:
        RuntimeError: If the runners cannot be driven here.
    """
    reason = missing()
    if reason is not None:
        raise RuntimeError(reason)
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    backends: Any = importlib.import_module("triton.backends").backends
    backends.setdefault("cpu", TritonBackend())
    _take_bits_for_masks()
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    torch.zeros, torch.empty = partial(_unpinned, torch.zeros), partial(_unpinned, torch.empty)
    _be_the_cpu_build()
    torch.cuda.current_stream = lambda device=None: Stream()
    platform: Any = importlib.import_module("vllm.platforms").current_platform
    type(platform).num_compute_units = classmethod(lambda cls, device_id=0: COMPUTE_UNITS)
    indexer: Any = importlib.import_module("vllm.v1.attention.backends.mla.indexer")
    indexer.num_compute_units = lambda device_id=0: COMPUTE_UNITS
    indexer._supports_native_decode = NATIVE_WIDTHS.__contains__
    buffers: Any = importlib.import_module("vllm.v1.worker.gpu.buffer_utils")
    # A CPU's memory is its own view: what the host writes is what the device sees, as with unified addresses.
    buffers.is_uva_available = lambda: True
    buffers.get_accelerator_view_from_cpu_tensor = lambda array: array
    torch.Tensor.pin_memory = lambda array, device=None: array
    flashmla: Any = importlib.import_module("vllm.v1.attention.backends.mla.flashmla_sparse")
    flashmla.get_mla_metadata = lambda: (KernelSchedule(), None)
    flashmla.num_compute_units = lambda device_id=0: COMPUTE_UNITS


def _be_the_cpu_build() -> None:
    """Have a release that was unpacked beside the installed one run on a CPU: it asks its version for that word."""
    version = metadata.version

    def with_word(distribution_name: str) -> str:
        """Return the version of a distribution."""
        found = version(distribution_name)
        return f"{found}+cpu" if distribution_name == "vllm" else found

    metadata.version = with_word


def _unpinned(make: Callable[..., Any], *args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
    """Make an array in pageable memory: without an accelerator there is no other."""
    return make(*args, **kwargs)


def _take_bits_for_masks() -> None:
    """Have the interpreter take the lowest bit of a mask, as a device does: after ``~`` it keeps whole bytes."""
    builder = importlib.import_module("triton.runtime.interpreter").InterpreterBuilder
    for name, place in (("create_masked_load", 1), ("create_masked_store", 2), ("create_select", 0)):
        setattr(builder, name, _with_bits(getattr(builder, name), place))


def _with_bits(method: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Return a method one of whose arguments is a mask."""

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        mask = args[place]
        if mask.data.dtype != bool:
            mask = type(mask)((mask.data & 1).astype(bool), mask.dtype)
        return method(self, *args[:place], mask, *args[place + 1 :], **kwargs)

    return called
