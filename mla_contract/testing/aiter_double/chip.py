"""The pretended release and GPU, and what depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

Arguments = Mapping[str, Any]
"""Arguments of one call by parameter name, defaults applied."""

POISON = float("nan")
"""What unwritten floats hold."""

FP8_MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0}
COMPUTE_UNITS = {"gfx942": 304, "gfx950": 256}


class AiterAbort(RuntimeError):
    """Here aiter would print a message and end the process, or read memory that is not its own."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A release of aiter on a GPU.

    Attributes:
        release: Version without prefix, such as ``0.1.20``.
        arch: ``gfx942`` or ``gfx950``; others have no kernels.
        num_cus: Compute units.
    """

    release: str
    arch: str
    num_cus: int

    def since(self, release: str) -> bool:
        """Return whether the pretended release is this one or a later one."""
        return version(self.release) >= version(release)

    @property
    def fp8(self) -> torch.dtype:
        """The flavour of the arch; an unknown arch has bytes."""
        if self.arch == "gfx942":
            return torch.float8_e4m3fnuz
        return torch.float8_e4m3fn if self.arch == "gfx950" else torch.uint8

    def pair(self, q: torch.dtype, kv: torch.dtype) -> tuple[str, str]:
        """Return the names of an element type pair; both flavours of fp8 are one id inside aiter."""
        return _short(q), _short(kv)

    def fold(self, q: str, kv: str, heads: int) -> int:
        """Return into how many groups of 16 heads a row is folded; 1 where a native kernel exists."""
        if heads <= 16 or heads % 16:
            return 1
        if self.arch == "gfx942":
            native = {128} | ({64} if self.since("0.1.18") else set()) if (q, kv) == ("fp8", "fp8") else set()
        elif (q, kv) == ("bf16", "bf16"):
            native = set(range(32, 129, 16)) if self.since("0.1.14") else {128}
        elif (q, kv) == ("fp8", "fp8"):
            native = {64, 128} | ({32} if self.since("0.1.17") else set())
        else:
            native = set()
        return 1 if heads in native else heads // 16

    def has_plain(self, q: str, kv: str, heads: int) -> bool:
        """Return whether a kernel without work exists."""
        if (q, kv) == ("bf16", "bf16"):
            return heads in ({8, 16, 32, 128} if self.arch == "gfx942" else {8, 16, 32, 64, 128})
        return (q, kv) == ("fp8", "fp8") and heads in (8, 16, 128)

    def has_work_lse(self, q: str, kv: str, heads: int) -> bool:
        """Return whether the kernel with work can write the LSE."""
        if self.arch == "gfx942":
            return (q, kv, heads) == ("fp8", "fp8", 64) and self.since("0.1.18")
        return q == kv


def version(text: str) -> tuple[int, ...]:
    """Return a release as numbers."""
    return tuple(int(part) for part in text.split("."))


def require(holds: bool, message: str) -> None:
    """Raise where aiter would abort.

    Raises:
        AiterAbort: If ``holds`` is false.
    """
    if not holds:
        raise AiterAbort(message)


def _short(dtype: torch.dtype) -> str:
    """Return aiter's name of an element type."""
    if dtype in FP8_MAX:
        return "fp8"
    return "bf16" if dtype is torch.bfloat16 else str(dtype)
