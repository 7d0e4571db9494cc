"""Lowers a plan to the device: buffers that never move, one staging buffer, one copy for each step, no read back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mla_contract.adapters.buffer_fields import FIELDS
from mla_contract.adapters.capacity import Capacity, RowUnit
from mla_contract.adapters.fault import InvalidBatch, InvalidConfig, SettingFault
from mla_contract.adapters.field_buffer import MOST_VIEWS, FieldBuffer

if TYPE_CHECKING:
    from torch import Tensor

    from mla_contract.adapters.plan import BatchPlan

ALIGNMENT_BYTES = 256
"""Each field begins at a multiple of this in the packed buffer."""


class DevicePlan:
    """A plan and its arrays on the device, as views of the persistent buffers.

    Attributes:
        plan: The plan on the host.
    """

    __slots__ = ("_fields", "plan")

    def __init__(self, plan: BatchPlan, fields: dict[str, FieldBuffer]) -> None:
        self.plan, self._fields = plan, fields

    def __getitem__(self, name: str) -> Tensor:
        """Return a field's live rows; a field that the plan does not have has none."""
        return self._fields[name].live(self.plan)

    def rows(self, name: str, begin: int, end: int) -> Tensor:
        """Return some of a field's rows."""
        return self._fields[name].view(begin, end)


class PlanBuffers:
    """Persistent buffers for arrays of a plan.

    Attributes:
        capacity: The largest batch.
        num_bytes: Bytes of the packed buffer: each field's rows times its element size, rounded up to the alignment.
    """

    def __init__(self, capacity: Capacity, device: Any, fields: Collection[str] | None = None) -> None:
        """Allocate the buffers; done once, while the engine profiles.

        Args:
            capacity: The largest batch.
            device: A torch device, or its name.
            fields: Names of the fields that are lowered; all by default.

        Raises:
            InvalidConfig: There is no such field.
        """
        import torch

        wanted = {field.name for field in FIELDS} if fields is None else set(fields)
        chosen = [field for field in FIELDS if field.name in wanted]
        if len(chosen) < len(wanted):
            known = sorted(field.name for field in FIELDS)
            raise InvalidConfig([SettingFault("PlanBuffers.fields", f"names among {known}", sorted(wanted))])
        sizes = [capacity.rows(field.unit) + field.more_rows for field in chosen]
        nbytes = [rows * np.dtype(field.dtype).itemsize for field, rows in zip(chosen, sizes, strict=True)]
        begins = np.cumsum([0, *(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in nbytes)]).tolist()
        self.capacity, self.num_bytes = capacity, begins.pop()
        self._most_requests = capacity.rows(RowUnit.REQUESTS)
        device = torch.device(device)
        self._packed = torch.empty(self.num_bytes, dtype=torch.uint8, device=device)
        self._staging = torch.empty(self.num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._copied = torch.Event(device) if device.type == "cuda" else None
        self._spans: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        staged = self._staging.numpy()
        self._fields = {
            field.name: FieldBuffer(
                field,
                begin,
                staged[begin : begin + size].view(field.dtype),
                self._packed[begin : begin + size].view(getattr(torch, field.dtype)),
            )
            for field, begin, size in zip(chosen, begins, nbytes, strict=True)
        }
        self._ordered = tuple(self._fields.values())

    def buffer(self, name: str) -> Tensor:
        """Return a field's whole buffer; its address never changes, and a captured graph may read it."""
        return self._fields[name].device

    def overwrite(self, name: str, *, padding: bool = False) -> Tensor:
        """Return a field's whole buffer to be written on the device; the next step copies its rows again.

        Args:
            name: The field.
            padding: Whether rows behind the live ones will be written too.
        """
        self._fields[name].forget(padding=padding)
        return self._fields[name].device

    def lower(self, plan: BatchPlan) -> DevicePlan:
        """Copy a plan to the device, and return its arrays there.

        After each step all rows behind the live ones hold the field's padding. Only the span that differs from the
        step before is copied, at once and queued on the current stream. Before it writes, the call waits until the
        step before has left the staging buffer.

        Args:
            plan: The plan.

        Raises:
            InvalidBatch: An array has more rows than its buffer.

        Sync: reads no device memory; may wait for the copy of the step before.
        Source: vLLM 0.32.0 v1/attention/backends/mla/indexer.py, whose buffers are written by several copies.
        """
        self.validate_requests(plan.shape.num_reqs)
        self._await()
        for field in self._ordered:
            field.write(field.read(plan))
        self._copy()
        return DevicePlan(plan, self._fields)

    def lower_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copy arrays of a plan to the device as ``lower`` does; fields that are not named have no live rows.

        Args:
            arrays: For each field its live rows; an array that is given twice must not have changed in between.

        Raises:
            InvalidBatch: An array has more rows than its buffer.

        Sync: reads no device memory; may wait for the copy of the step before.
        """
        self._await()
        for field in self._ordered:
            field.write(arrays.get(field.name))
        self._copy()

    def validate_requests(self, count: int) -> None:
        """Raise if a batch has more requests than the capacity, whether or not a field has a row for each.

        Raises:
            InvalidBatch: It has.
        """
        if count > self._most_requests:
            facts = {"expected": f"at most {self._most_requests} requests", "got": count}
            raise InvalidBatch("buffers", facts, help="raise the capacity, or lower the batch's limits")

    def _await(self) -> None:
        """Wait until the step before has left the staging buffer."""
        if self._copied is not None:
            self._copied.synchronize()

    def _copy(self) -> None:
        """Copy the span of all dirty rows."""
        dirty = [field for field in self._ordered if field.dirty]
        if not dirty:
            return
        # One copy from the first dirty row to the last, clean rows between them included: a launch costs more than the
        # bytes do.
        packed, staging = self._span(dirty[0].begin, dirty[-1].end)
        packed.copy_(staging, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        for field in dirty:
            field.dirty = 0

    def _span(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Return the same bytes of both buffers."""
        found = self._spans.get((begin, end))
        if found is None:
            if len(self._spans) >= MOST_VIEWS:
                self._spans.clear()
            found = self._spans[begin, end] = self._packed[begin:end], self._staging[begin:end]
        return found


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
