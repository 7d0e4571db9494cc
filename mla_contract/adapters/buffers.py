"""Lowers a plan to the device: buffers that never move, one staging buffer, one copy for each step, no read back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mla_contract.adapters.context_packed import PackedContextPlan
from mla_contract.adapters.fault import InvalidBatch
from mla_contract.adapters.fields import FIELDS, BufferField, Capacity

if TYPE_CHECKING:
    from torch import Tensor

    from mla_contract.adapters.plan import BatchPlan

ALIGNMENT_BYTES = 256
"""Each field begins at a multiple of this in the packed buffer."""


@dataclass(frozen=True, slots=True, eq=False)
class DevicePlan:
    """A plan and its arrays on the device, as views of the persistent buffers.

    Attributes:
        plan: The plan on the host.
        tensors: For each field, its live rows; a field that the plan does not have has none.
    """

    plan: BatchPlan
    tensors: dict[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        """Return a field's live rows."""
        return self.tensors[name]


class PlanBuffers:
    """Persistent buffers for every array of a plan.

    Attributes:
        capacity: The largest batch.
        num_bytes: Bytes of the packed buffer: each field's rows times its element size, rounded up to the alignment.
    """

    def __init__(self, capacity: Capacity, device: Any) -> None:
        """Allocate the buffers; done once, while the engine profiles.

        Args:
            capacity: The largest batch.
            device: A torch device, or its name.
        """
        import torch

        self.capacity = capacity
        self._places: dict[str, tuple[BufferField, int, int]] = {}
        end = 0
        for field in FIELDS:
            rows = capacity.rows(field.axis) + field.more_rows
            self._places[field.name] = field, end, rows
            end += -(-rows * np.dtype(field.dtype).itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.num_bytes = end
        device = torch.device(device)
        self._packed = torch.empty(end, dtype=torch.uint8, device=device)
        self._staging = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._copied = torch.Event(device) if device.type == "cuda" else None
        staged = self._staging.numpy()
        self._host = {name: self._cut(staged, name) for name in self._places}
        self._device = {
            name: self._packed[begin : begin + rows * np.dtype(field.dtype).itemsize].view(getattr(torch, field.dtype))
            for name, (field, begin, rows) in self._places.items()
        }

    def _cut(self, staged: NDArray[np.uint8], name: str) -> NDArray[Any]:
        """Return a field's rows of the staging buffer."""
        field, begin, rows = self._places[name]
        return staged[begin : begin + rows * np.dtype(field.dtype).itemsize].view(field.dtype)

    def buffer(self, name: str) -> Tensor:
        """Return a field's whole buffer; its address never changes, and a captured graph may read it."""
        return self._device[name]

    def lower(self, plan: BatchPlan) -> DevicePlan:
        """Copy a plan to the device, and return its arrays there.

        All rows are written at every step, those behind the live ones with the field's padding. The copy is queued on
        the current stream. Before it writes, the call waits until the step before has left the staging buffer.

        Args:
            plan: The plan.

        Raises:
            InvalidBatch: An array has more rows than its buffer.

        Sync: reads no device memory; may wait for the copy of the step before.
        Source: vLLM 0.32.0 v1/attention/backends/mla/indexer.py, whose buffers are written by several copies.
        """
        if self._copied is not None:
            self._copied.synchronize()
        rows = {name: self._stage(name, values) for name, values in _arrays(plan).items()}
        self._packed.copy_(self._staging, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return DevicePlan(plan, {name: self._device[name][:count] for name, count in rows.items()})

    def _stage(self, name: str, values: NDArray[Any] | None) -> int:
        """Write a field's live rows and its padding; return the number of live rows."""
        field, _, rows = self._places[name]
        count = 0 if values is None else values.size
        if count > rows:
            facts = {"expected": f"at most {rows} rows, {field.formula}", "got": count}
            raise InvalidBatch(f"buffer {name}", facts, help="raise the capacity, or lower the batch's limits")
        host = self._host[name]
        if values is not None:
            host[:count] = values.reshape(-1)
        last = int(host[count - 1]) if count else 0
        host[count:] = last if field.padding is None else field.padding
        return count


def _arrays(plan: BatchPlan) -> dict[str, NDArray[Any] | None]:
    """Return the plan's array for each field; None where the plan has none."""
    shape, tokens, decode, indexer = plan.shape, plan.tokens, plan.decode, plan.indexer
    context = plan.context if isinstance(plan.context, PackedContextPlan) else None
    return {
        "query_start_loc": shape.query_start_loc,
        "seq_lens": shape.seq_lens,
        "req_id_per_token": tokens.requests,
        "positions": tokens.positions,
        "slot_mapping": plan.slot_mapping,
        "sparse_start_loc": plan.sparse_start_loc,
        "decode_seq_lens": None if decode is None else decode.seq_lens,
        "decode_global_seq_lens": None if decode is None else decode.global_seq_lens,
        "decode_lens": None if decode is None else decode.decode_lens,
        "decode_row_requests": None if decode is None else decode.row_requests,
        "context_gather_starts": None if context is None else context.gather_starts,
        "context_seq_lens": None if context is None else context.seq_lens,
        "context_cu_seq_lens": None if context is None else context.cu_seq_lens,
        "context_query_start_loc": None if context is None else context.query_start_loc,
        "context_local_cu_seq_lens": None if context is None else context.padded_local_cu_seq_lens,
        "indexer_cu_seqlen_ks": None if indexer is None else indexer.cu_seqlen_ks,
        "indexer_cu_seqlen_ke": None if indexer is None else indexer.cu_seqlen_ke,
        "indexer_cu_seq_lens": None if indexer is None else indexer.cu_seq_lens,
        "indexer_local_cu_seq_lens": None if indexer is None else indexer.local_cu_seq_lens,
    }


def expand_owners(cu_lens: Tensor, num_rows: int) -> Tensor:
    """Return the owner of each gathered row, computed on the device.

    Args:
        cu_lens: [n+1] int32, prefix sum of rows.
        num_rows: Its last value, known on the host.

    Returns:
        [num_rows] int32.

    Sync: none; the size is given.
    """
    import torch

    rows = torch.arange(num_rows, dtype=torch.int32, device=cu_lens.device)
    return torch.searchsorted(cu_lens[1:], rows, right=True, out_int32=True)
