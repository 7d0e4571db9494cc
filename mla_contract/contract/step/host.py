"""The only place where a check reads elements of arrays: host copies freely, device arrays with a mark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

_pretend_capture: ContextVar[bool] = ContextVar("mla_contract_capture", default=False)
_reads: ContextVar[int] = ContextVar("mla_contract_device_reads", default=0)


class CaptureInProgress(RuntimeError):
    """A device array was to be read while a stream is captured."""


def host_copy(array: Any) -> Any:
    """Return the elements of an array that lives on the host, or None for any other.

    Sync: none
    """
    if array is None or not array.is_cpu:
        return None
    return array.numpy()


def host(array: Any) -> NDArray[Any]:
    """Return the elements of an array, wherever it lives, and count the read.

    Raises:
        CaptureInProgress: If a stream is being captured.

    Sync: reads device memory
    """
    if _pretend_capture.get() or (not array.is_cpu and is_capturing()):
        raise CaptureInProgress("values are not read during stream capture")
    _reads.set(_reads.get() + 1)
    elements: NDArray[Any] = array.numpy() if array.is_cpu else array.detach().cpu().numpy()
    return elements


def host_ints(array: Any) -> NDArray[np.int64]:
    """Return ``host(array)`` as 64-bit integers, so that arithmetic cannot wrap."""
    return host(array).astype(np.int64, copy=False)


def device_reads() -> int:
    """Return how many arrays ``host`` has read in this context."""
    return _reads.get()


def is_capturing() -> bool:
    """Return whether a stream of this thread is being captured, or a test says so."""
    if _pretend_capture.get():
        return True
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    return bool(torch.cuda.is_current_stream_capturing())


@contextmanager
def capturing() -> Iterator[None]:
    """Make ``is_capturing`` true: for tests, and for engines whose capture torch does not see."""
    token = _pretend_capture.set(True)
    try:
        yield
    finally:
        _pretend_capture.reset(token)
