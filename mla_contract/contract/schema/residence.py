"""Where an array lives, as part of its type: ``Host[Int32[Tensor, "num_reqs"]]``. Type checkers read just the array."""

from __future__ import annotations

from typing import Annotated, TypeVar

ArrayT = TypeVar("ArrayT")

HOST, DEVICE = "host", "device"

Host = Annotated[ArrayT, HOST]
"""An array in host memory: reading its elements waits for nothing."""

Device = Annotated[ArrayT, DEVICE]
"""An array on the device that all others of its record share; on a CPU the host is the device."""
