"""One field of a plan on the device: its rows in the staging buffer and in the packed buffer, and what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from mla_contract.adapters.context_packed import PackedContextPlan
from mla_contract.adapters.fault import InvalidBatch

if TYPE_CHECKING:
    from torch import Tensor

    from mla_contract.adapters.buffer_fields import BufferField
    from mla_contract.adapters.plan import BatchPlan

MOST_VIEWS = 256
"""Views that are kept; making one costs more than most that is done with it."""


class FieldBuffer:
    """A field's rows; only what differs from the step before is written.

    Attributes:
        name: The field's name.
        field: The field.
        begin: Where its rows begin in the packed buffer, in bytes.
        device: All its rows on the device.
        dirty: Leading rows that were staged and not yet copied.
        values: The live rows that were staged last; None for none.
    """

    __slots__ = (
        "_attribute",
        "_count",
        "_fill",
        "_host",
        "_part",
        "_views",
        "begin",
        "device",
        "dirty",
        "field",
        "name",
        "values",
    )

    def __init__(self, field: BufferField, begin: int, staged: NDArray[Any], device: Tensor) -> None:
        """Take the field's rows of both buffers.

        Args:
            field: The field.
            begin: Where its rows begin, in bytes.
            staged: Its rows in the staging buffer.
            device: Its rows in the packed buffer.
        """
        self.name, self.field, self.begin, self.device, self._host = field.name, field, begin, device, staged
        self._part, _, self._attribute = field.source.rpartition(".")
        self._views: dict[tuple[int, int], Tensor] = {}
        self.values: object = self
        self._fill: int | None = None
        self._count, self.dirty = len(staged), 0

    @property
    def end(self) -> int:
        """Where the rows end that are to be copied, in bytes."""
        return self.begin + self.dirty * self._host.itemsize

    def read(self, plan: BatchPlan) -> NDArray[Any] | None:
        """Return the plan's array; None where the plan has none."""
        if not self._part:
            return getattr(plan, self._attribute)  # type: ignore[no-any-return]
        part = getattr(plan, self._part)
        if part is None or (self._part == "context" and not isinstance(part, PackedContextPlan)):
            return None
        return getattr(part, self._attribute)  # type: ignore[no-any-return]

    def live(self, plan: BatchPlan) -> Tensor:
        """Return the rows on the device that the plan fills."""
        values = self.read(plan)
        return self.view(0, 0 if values is None else values.size)

    def view(self, begin: int, end: int) -> Tensor:
        """Return some rows on the device."""
        found = self._views.get((begin, end))
        if found is None:
            if len(self._views) >= MOST_VIEWS:
                self._views.clear()
            found = self._views[begin, end] = self.device[begin:end]
        return found

    def write(self, values: NDArray[Any] | None) -> None:
        """Stage live rows, and padding wherever rows behind them do not hold it.

        An array of a plan is never written again, so the very array of the step before has nothing new.

        Args:
            values: The live rows; None for none.

        Raises:
            InvalidBatch: The array has more rows than the buffer.
        """
        if values is self.values:
            return
        host, count = self._host, 0 if values is None else values.size
        if count > len(host):
            facts = {"expected": f"at most {len(host)} rows, {self.field.formula}", "got": count}
            raise InvalidBatch(
                f"buffer {self.field.name}", facts, help="raise the capacity, or lower the batch's limits"
            )
        if values is not None:
            host[:count] = values if values.ndim == 1 else values.reshape(-1)
        # Rows behind those of the step before hold the padding already, unless the padding itself is another: an
        # offset that is repeated changes with its last value, and then all rows are written.
        fill, end = self.field.padding, max(count, self._count)
        if fill is None:
            fill = host.item(count - 1) if count else 0
        if fill != self._fill:
            end = len(host)
        if end > count:
            host[count:end] = fill
        self.values, self._count, self._fill = values, count, fill
        self.dirty = max(self.dirty, end)

    def forget(self, *, padding: bool) -> None:
        """Have the next write stage all live rows again, and all padding, as the device's rows were written there.

        Args:
            padding: Whether rows behind the live ones were written too.
        """
        self.values = self
        if padding:
            self._fill = None
