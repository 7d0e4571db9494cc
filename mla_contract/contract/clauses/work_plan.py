"""The persistent work plan of ragged rows of one token: every KV position once, and a reduction that agrees with it.

These checks look at one record of buffers rather than at a batch; ``work_buffers`` states them as clauses.
A *virtual row* is a row of the kernel: a token, or one group of 16 heads of a token where heads are folded.

Source: aiter v0.1.20 csrc/kernels/mla/metadata, by its behaviour
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mla_contract.contract.clauses.clause import Breach
from mla_contract.contract.step.host import host_ints
from mla_contract.contract.violation import Violation

if TYPE_CHECKING:
    from mla_contract.contract.schema.aiter import AiterWork

ITEM = ("batch_idx", "partial_qo_loc", "qo_start", "qo_end", "kv_start", "kv_end", "kv_offset", "pad")
"""Fields of one work item, in order."""


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """The live part of the buffers, on the host.

    Attributes:
        offsets: ``kv_indptr`` that the plan was made for.
        fold: Virtual rows of a token.
        granularity: KV positions of a block; fragments begin at multiples of it.
        units: ``work_indptr``.
        items: Work items as far as ``work_indptr`` counts them.
        capacity: Rows of ``work_info_set``.
        steps: ``reduce_indptr``.
        final_map: ``reduce_final_map``.
        partial_map: ``reduce_partial_map``.
        pointers: The two addresses in ``work_meta_data``, and the two that they should be.
    """

    offsets: list[int]
    fold: int
    granularity: int
    units: list[int]
    items: list[list[int]]
    capacity: int
    steps: list[int]
    final_map: list[list[int]]
    partial_map: list[int]
    pointers: tuple[list[int], list[int]]

    @property
    def num_rows(self) -> int:
        """Virtual rows."""
        return (len(self.offsets) - 1) * self.fold

    def span(self, row: int) -> tuple[int, int]:
        """Return the KV positions of a virtual row."""
        return self.offsets[row // self.fold], self.offsets[row // self.fold + 1]

    def of_row(self) -> dict[int, list[int]]:
        """Return the indices of each virtual row's items, in order."""
        found: dict[int, list[int]] = {}
        for index, item in enumerate(self.items):
            found.setdefault(item[2], []).append(index)
        return found


def check_work_metadata(
    work: AiterWork, kv_indptr: Any, *, fold: int = 1, granularity: int = 16
) -> tuple[Violation, ...]:
    """Return every breach of a filled work plan; never raises.

    Args:
        work: The six buffers.
        kv_indptr: int32 prefix sum of KV positions of each row that the plan was made for.
        fold: Virtual rows of a token: heads / 16 where the kernel folds heads, else 1.
        granularity: KV positions of a block of the planner.

    Sync: reads device memory
    """
    plan, name = plan_of(work, kv_indptr, fold, granularity), type(work).__name__
    return tuple(
        Violation(code, one.path, one.message, one.expected, one.got, one.axes, HELP[code])
        for code, check in CHECKS.items()
        for one in breaches_of(plan, name, check)
    )


def breaches_of(plan: WorkPlan, name: str, check: Check) -> tuple[Breach, ...]:
    """Return what one check finds in the plan of a record called ``name``."""
    axes = {"num_rows": len(plan.offsets) - 1, "fold": plan.fold, "num_units": len(plan.units) - 1}
    return tuple(replace(one, path=f"{name}.{one.path}", axes=axes) for one in check(plan))


def plan_of(work: AiterWork, kv_indptr: Any, fold: int, granularity: int) -> WorkPlan:
    """Return the buffers on the host."""
    units = host_ints(work.work_indptr).tolist()
    info = host_ints(work.work_info_set)
    live = min(max([0, *units]), len(info))
    addresses = host_ints(work.work_meta_data).tolist()
    buffers: tuple[Any, Any] = (work.work_indptr, work.work_info_set)
    return WorkPlan(
        host_ints(kv_indptr).tolist(),
        fold,
        granularity,
        units,
        info[:live].tolist(),
        len(info),
        host_ints(work.reduce_indptr).tolist(),
        host_ints(work.reduce_final_map).tolist(),
        host_ints(work.reduce_partial_map).tolist(),
        (addresses, [one.data_ptr() for one in buffers]),
    )


def check_offsets(plan: WorkPlan) -> Iterator[Breach]:
    """Check the rows that were planned: ragged offsets from 0, no row empty."""
    if not plan.offsets or plan.offsets[0] != 0:
        yield Breach("kv_indptr", "offsets do not start at 0", "0", str(plan.offsets[:1]))
    for row, (start, end) in enumerate(pairwise(plan.offsets)):
        if end <= start:
            yield Breach("kv_indptr", f"row {row} is empty: its output is undefined", f"above {start}", str(end))


def check_units(plan: WorkPlan) -> Iterator[Breach]:
    """Check the prefix sum over compute units."""
    if not plan.units or plan.units[0] != 0 or any(b < a for a, b in pairwise(plan.units)):
        yield Breach(
            "work_indptr", "does not start at 0 or falls", "0, then a non-decreasing sequence", str(plan.units[:8])
        )
    elif plan.units[-1] > plan.capacity:
        text = f"at most {plan.capacity}"
        yield Breach("work_indptr", "counts more items than there is room for", text, str(plan.units[-1]))


def check_coverage(plan: WorkPlan) -> Iterator[Breach]:
    """Check that the items of each row lie together and cover each of its positions once."""
    rows = plan.of_row()
    for row in sorted(set(rows) - set(range(plan.num_rows))):
        yield Breach(f"work_info_set[{rows[row][0]}].qo_start", "no such row", f"below {plan.num_rows}", str(row))
    for row in range(plan.num_rows):
        start, end = plan.span(row)
        own = rows.get(row, [])
        if start == end and len(own) <= 1:
            continue
        spans = [(plan.items[index][4], plan.items[index][5]) for index in own]
        edges = [start, *(last for _, last in spans)]
        joined = all(first == edge and last > first for (first, last), edge in zip(spans, edges, strict=False))
        if not joined or edges[-1] != end or own != list(range(own[0], own[0] + len(own))):
            text = f"items {own[:4]} cover {spans[:4]}"
            yield Breach("work_info_set", f"row {row} is not covered once", f"[{start}, {end}) in order", text)
        for index, (first, _) in zip(own, spans, strict=True):
            if (first - start) % plan.granularity:
                path = f"work_info_set[{index}].kv_start"
                yield Breach(path, "fragment begins inside a block", f"{start} + n*{plan.granularity}", str(first))


def check_items(plan: WorkPlan) -> Iterator[Breach]:
    """Check the fields of each item that follow from its row and range."""
    for index, item in enumerate(plan.items):
        row = item[2]
        if not 0 <= row < plan.num_rows:
            continue
        wanted = {0: row, 3: row + 1, 6: plan.span(row)[1] - item[5], 7: 0}
        for place, value in wanted.items():
            if item[place] != value:
                yield Breach(f"work_info_set[{index}].{ITEM[place]}", "wrong field", str(value), str(item[place]))


def check_reduction(plan: WorkPlan) -> Iterator[Breach]:
    """Check that exactly the split rows are reduced, from their own partial results and into their own row."""
    rows, steps = plan.of_row(), plan.steps
    if len(steps) <= plan.num_rows or steps[0] != 0 or any(b < a for a, b in pairwise(steps)):
        text = f"{plan.num_rows + 1} offsets"
        yield Breach("reduce_indptr", "does not start at 0, falls, or is too short", text, str(steps[:8]))
        return
    for row in range(plan.num_rows):
        partials = [plan.items[index][1] for index in rows.get(row, [])]
        first, last = steps[row], steps[row + 1]
        if len(partials) <= 1:
            if last != first or partials not in ([], [-1]):
                yield Breach("reduce_indptr", f"row {row} is not split, but reduced", "no entry, -1", f"{last - first}")
            continue
        if last - first != len(partials) or plan.partial_map[first:last] != partials:
            got = str(plan.partial_map[first:last][:4])
            yield Breach("reduce_partial_map", f"row {row} is reduced from other partials", str(partials[:4]), got)
        if plan.final_map[row : row + 1] != [[row, row + 1]]:
            got = str(plan.final_map[row : row + 1])
            yield Breach(f"reduce_final_map[{row}]", "reduced into another row", str([row, row + 1]), got)
    if any(step != steps[plan.num_rows] for step in steps[plan.num_rows :]):
        yield Breach("reduce_indptr", "the tail does not repeat the total", str(steps[plan.num_rows]), str(steps[-1]))


def check_partials(plan: WorkPlan) -> Iterator[Breach]:
    """Check that partial results do not overlap, leave no gap, and fit."""
    places = sorted(item[1] for item in plan.items if item[1] != -1)
    if places != list(range(len(places))):
        text = f"0 to {len(places) - 1}"
        yield Breach("work_info_set.partial_qo_loc", "partials overlap or leave gaps", text, str(places[:8]))
    if places and places[-1] >= len(plan.partial_map):
        got = str(places[-1])
        yield Breach("work_info_set.partial_qo_loc", "behind the partial buffer", f"below {len(plan.partial_map)}", got)


def check_order(plan: WorkPlan) -> Iterator[Breach]:
    """Check that only the last item of a compute unit leaves its row unfinished."""
    last_of_unit = {end - 1 for start, end in pairwise(plan.units) if end > start}
    for row, own in plan.of_row().items():
        for index in own[:-1]:
            if index not in last_of_unit:
                message = f"fragment {index} of row {row} is not its unit's last"
                yield Breach("work_indptr", message, "a unit that ends here", str(plan.units[:8]))


def check_pointers(plan: WorkPlan) -> Iterator[Breach]:
    """Check the addresses that the kernel will follow."""
    got, wanted = plan.pointers
    if got != wanted:
        yield Breach("work_meta_data", "addresses of other buffers", str(wanted), str(got))


Check = Callable[[WorkPlan], Iterator[Breach]]

CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "MLA291": check_offsets,
        "MLA292": check_units,
        "MLA293": check_coverage,
        "MLA294": check_items,
        "MLA295": check_reduction,
        "MLA296": check_partials,
        "MLA297": check_order,
        "MLA298": check_pointers,
    }
)
"""The checks by code."""

HELP: Mapping[str, str] = MappingProxyType(
    {
        "MLA291": "give every empty row one entry before planning, and discard its result",
        "MLA292": "fill the buffers with get_mla_metadata_v1 before the kernel runs",
        "MLA293": "refill when any length changed; pass the kernel's element types to the planner",
        "MLA294": "refill when any length changed",
        "MLA295": "fill all six buffers in one call",
        "MLA296": "allocate what the size call asks for, with the same arguments as the fill call",
        "MLA297": "fill all six buffers in one call",
        "MLA298": "keep work_meta_data, work_indptr and work_info_set together; neither clone nor slice the last two",
    }
)
"""What to do about each."""
