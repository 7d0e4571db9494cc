"""The Triton kernels as a provider: why they cannot run, and which launch runs what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from mla_contract.backends.kernels.describe import describe_inputs
from mla_contract.backends.kernels.triton.attention import attention_reason, run_attention
from mla_contract.backends.kernels.triton.checks import place_of
from mla_contract.backends.kernels.triton.device import TritonDevice
from mla_contract.backends.kernels.triton.indexer import (
    chunk_reason,
    paged_reason,
    run_chunk,
    run_paged,
    run_topk,
    topk_reason,
)
from mla_contract.backends.kernels.triton.pages import (
    gather_reason,
    map_reason,
    run_gather,
    run_map,
    run_write,
    write_reason,
)
from mla_contract.contract.schema.provider import (
    ChunkLogits,
    GatherIndexerK,
    MapSlots,
    Operation,
    PagedLogits,
    SparseAttention,
    TopkRows,
    WriteIndexerK,
)
from mla_contract.errors import NoProvider

R = TypeVar("R")

_KERNELS: Mapping[type, tuple[Callable[[Any, TritonDevice], str | None], Callable[[Any, TritonDevice], Any]]] = (
    MappingProxyType(
        {
            WriteIndexerK: (write_reason, run_write),
            GatherIndexerK: (gather_reason, run_gather),
            ChunkLogits: (chunk_reason, run_chunk),
            PagedLogits: (paged_reason, run_paged),
            TopkRows: (topk_reason, run_topk),
            MapSlots: (map_reason, run_map),
            SparseAttention: (attention_reason, run_attention),
        }
    )
)


class TritonProvider:
    """Portable kernels for any GPU that Triton knows, and for the CPU in Triton's interpreter.

    Args:
        interpreted: Whether arrays on the CPU are taken, for tests: one program at a time, slower than the reference.
            TRITON_INTERPRET must be set before this module is imported.
    """

    name = "triton"

    def __init__(self, *, interpreted: bool = False) -> None:
        self._interpreted = interpreted

    def reason(self, inputs: Operation[Any]) -> str | None:
        """Return why the kernels cannot run ``inputs``, or None.

        Sync: none
        """
        if type(inputs) not in _KERNELS:
            return f"{type(inputs).__name__}: these kernels split rows by themselves and need no work plan"
        device = place_of(inputs, interpreted=self._interpreted)
        return device if isinstance(device, str) else _KERNELS[type(inputs)][0](inputs, device)

    def run(self, inputs: Operation[R]) -> R:
        """Run the operation on the current stream of the arrays' device, which must be the current device. Sync: none.

        Raises:
            NoProvider: If ``reason`` gives one.
        """
        reason, device = self.reason(inputs), place_of(inputs, interpreted=self._interpreted)
        if reason is not None or isinstance(device, str):
            raise NoProvider(describe_inputs(inputs), {self.name: reason or str(device)})
        return run_on(inputs, device)


def run_on(inputs: Operation[R], device: TritonDevice) -> R:
    """Run an operation with the launches of a device's arch; ``reason`` must have returned None. Sync: none."""
    result: R = _KERNELS[type(inputs)][1](inputs, device)
    return result
