"""aiter as a provider: one place that turns inputs into a reason or into calls."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import torch

from mla_contract.backends.kernels.aiter.attention import attention_reason, fill_work, run_attention
from mla_contract.backends.kernels.aiter.binding import AiterCall
from mla_contract.backends.kernels.aiter.device import AiterDevice, detect
from mla_contract.backends.kernels.aiter.indexer import (
    chunk_logits_call,
    gather_call,
    paged_logits_call,
    write_call,
)
from mla_contract.backends.kernels.aiter.topk import to_positions, topk_call
from mla_contract.backends.kernels.aiter.work import fill_call, size_call, sizes_of
from mla_contract.backends.kernels.describe import describe_inputs
from mla_contract.contract.schema.provider import (
    ChunkLogits,
    FillWork,
    GatherIndexerK,
    Operation,
    PagedLogits,
    SizeWork,
    SparseAttention,
    TopkRows,
    WriteIndexerK,
)
from mla_contract.contract.structure.arrays import is_array
from mla_contract.errors import NoProvider

R = TypeVar("R")


class AiterProvider:
    """aiter's kernels on a ROCm device.

    Args:
        device: The GPU; detected on first use when None.
    """

    name = "aiter"

    def __init__(self, device: AiterDevice | None = None) -> None:
        self._device: AiterDevice | str | None = device

    def device(self) -> AiterDevice | str:
        """Return the GPU, or why there is none."""
        if self._device is None:
            self._device = detect()
        return self._device

    def reason(self, inputs: Operation[Any]) -> str | None:
        """Return why aiter cannot run ``inputs``, or None; every check that would end the process is made here.

        Sync: none
        """
        device = self.device()
        if isinstance(device, str):
            return device
        misplaced = _place_reason(inputs, device)
        if misplaced is not None:
            return misplaced
        if isinstance(inputs, SparseAttention):
            return attention_reason(inputs, device)
        call = _call(inputs, device)
        return call if isinstance(call, str) else call.reason()

    def run(self, inputs: Operation[R]) -> R:
        """Run the operation. Sync: none.

        Raises:
            NoProvider: If ``reason`` gives one.
        """
        reason, device = self.reason(inputs), self.device()
        if reason is not None or isinstance(device, str):
            raise NoProvider(describe_inputs(inputs), {self.name: reason or str(device)})
        return cast(R, _run(inputs, device))


def _call(inputs: Operation[Any], device: AiterDevice) -> AiterCall | str:
    """Return the call of an operation that is one call, or why there is none."""
    match inputs:
        case WriteIndexerK():
            return write_call(inputs, device)
        case GatherIndexerK():
            return gather_call(inputs, device)
        case ChunkLogits():
            return chunk_logits_call(inputs, device)
        case PagedLogits():
            return paged_logits_call(inputs, device)
        case TopkRows():
            return topk_call(inputs)
        case SizeWork():
            return size_call(inputs.config, device)
        case FillWork():
            return fill_call(inputs.buffers.config, inputs.buffers, device)
    return f"aiter has no kernel for {type(inputs).__name__}"


def _run(inputs: Operation[Any], device: AiterDevice) -> Any:
    """Run an operation for which there is no reason against it."""
    if isinstance(inputs, SparseAttention):
        return run_attention(inputs, device)
    if isinstance(inputs, FillWork):
        return fill_work(inputs.buffers, inputs.kv_indptr, device)
    if isinstance(inputs, TopkRows) and inputs.logits.shape[0] == 0:
        return None
    call = _call(inputs, device)
    if isinstance(call, str):
        raise ValueError(call)
    answer = call()
    if isinstance(inputs, TopkRows):
        return to_positions(inputs)
    if isinstance(inputs, SizeWork):
        return sizes_of(answer)
    return answer if isinstance(inputs, ChunkLogits) else None


def _place_reason(inputs: Operation[Any], device: AiterDevice) -> str | None:
    """Return which array is not on the GPU."""
    for name in getattr(inputs, "__dataclass_fields__", ()):
        array = getattr(inputs, name)
        if is_array(array) and cast(torch.Tensor, array).device.type != device.type:
            return f"{name} is on {array.device}, aiter runs on {device.type}"
    return None
