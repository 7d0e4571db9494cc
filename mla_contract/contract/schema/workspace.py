"""Workspace: the manager that a backend may ask, and requests whose size is known without a device.

The profiling run and the real run ask for the same plan; nobody allocates in a chunk loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol

from mla_contract.errors import InvalidContract

if TYPE_CHECKING:
    from torch import Tensor, dtype

ALIGNMENT_BYTES = 256
"""Each request begins at a multiple of this. Source: vLLM 0.33.0 v1/worker/workspace.py."""

ELEMENT_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}
"""Bytes of one element, by dtype name."""


class WorkspaceManager(Protocol):
    """The engine's scratch memory; it grows while the engine profiles and is locked afterwards."""

    def get_simultaneous(self, *shapes_and_dtypes: tuple[tuple[int, ...], dtype]) -> list[Tensor]:
        """Return one uninitialised view for each (shape, dtype), all alive together until the next call.

        Padding: each view begins at a multiple of 256 bytes.
        Source: vLLM 0.33.0 v1/worker/workspace.py
        """
        ...

    def is_locked(self) -> bool:
        """Return whether the workspace may no longer grow.

        Padding: none.
        Source: vLLM 0.33.0 v1/worker/workspace.py
        """
        ...


@dataclass(frozen=True, slots=True)
class WorkspaceRequest:
    """One scratch array.

    Attributes:
        name: What the array is for; unique inside a plan.
        shape: Elements along each dim.
        dtype: Name of the element type, without a library prefix.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in ELEMENT_BYTES:
            raise InvalidContract(
                f"workspace {self.name}: unknown dtype {self.dtype!r}; known: {', '.join(ELEMENT_BYTES)}"
            )
        if any(size < 0 for size in self.shape):
            raise InvalidContract(f"workspace {self.name}: negative size in shape {self.shape}")

    @property
    def num_bytes(self) -> int:
        """Bytes of the array itself, without alignment."""
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class WorkspacePlan:
    """The arrays that are alive together: what is reserved is what is used."""

    requests: tuple[WorkspaceRequest, ...]

    def __post_init__(self) -> None:
        names = [request.name for request in self.requests]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InvalidContract(f"workspace plan: repeated name {', '.join(repeated)}")

    @property
    def total_bytes(self) -> int:
        """Bytes that one ``get_simultaneous`` call with these arrays takes, each rounded up to the alignment."""
        return sum(-(-request.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for request in self.requests)
