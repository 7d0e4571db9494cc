"""Faults made by hand in a persistent work plan: two rows of 32 positions, the second split between two units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.trace import BuildTrace, PlannedWork
from mla_contract.testing.context_records import tensor
from tests.lab.changes import cut, flip, poke, proof, put
from tests.lab.faults import Change, PlantedFault

if TYPE_CHECKING:
    from torch import Tensor

BUFFERS = "trace.planned_work.buffers"
ITEMS = f"{BUFFERS}.work_info_set"
OFFSETS = (0, 32, 64)


@dataclass
class PlainWork:
    """The six arrays of a persistent work plan."""

    work_meta_data: Tensor
    work_indptr: Tensor
    work_info_set: Tensor
    reduce_indptr: Tensor
    reduce_final_map: Tensor
    reduce_partial_map: Tensor


def planned_work() -> StepContext:
    """Return a legal plan, in the layout that aiter's planner fills."""
    import torch

    units = tensor([0, 2, 3])
    items = tensor([[0, -1, 0, 1, 0, 32, 0, 0], [1, 0, 1, 2, 32, 48, 16, 0], [1, 1, 1, 2, 48, 64, 0, 0]])
    addresses = torch.tensor([units.data_ptr(), items.data_ptr()]).view(torch.uint64)
    buffers = PlainWork(addresses, units, items, tensor([0, 0, 2]), tensor([[0, 1], [1, 2]]), tensor([0, 1]))
    return StepContext(trace=BuildTrace(planned_work=PlannedWork(buffers, tensor(OFFSETS))))


def _offsets(values: Any) -> Change:
    """Return the change of the offsets that the plan is compared with."""

    def change(subject: StepContext) -> StepContext:
        given = subject.trace.planned_work
        return (
            subject
            if given is None
            else proof(planned_work=replace(given, kv_indptr=tensor(values)))(subject) or subject
        )

    return change


def _both(first: Change, second: Change) -> Change:
    def change(subject: StepContext) -> None:
        first(subject)
        second(subject)

    return change


def _moved(name: str) -> Change:
    return put(f"{BUFFERS}.{name}", lambda old: old.clone())


def work_faults() -> Iterator[PlantedFault]:
    """Yield the faults of a work plan."""
    table: tuple[tuple[str, str, str, Change], ...] = (
        ("starts above 0", "kv_indptr", "MLA291", _offsets([1, 32, 64])),
        ("empty row", "kv_indptr", "MLA291", _offsets([0, 32, 32])),
        ("stale plan", "work_info_set", "MLA293", _offsets([0, 33, 65])),
        ("wrong unit", "work_info_set", "MLA293", _offsets([0, 2, 4])),
        ("wrong order", "work_indptr", "MLA292", put(f"{BUFFERS}.work_indptr", tensor([0, 3, 2]))),
        ("starts above 0", "work_indptr", "MLA292", put(f"{BUFFERS}.work_indptr", tensor([1, 2, 3]))),
        ("too large", "work_indptr", "MLA292", poke(f"{BUFFERS}.work_indptr", 2, 9)),
        ("row cut in one unit", "work_indptr", "MLA297", put(f"{BUFFERS}.work_indptr", tensor([0, 1, 3]))),
        ("gap", "work_info_set", "MLA293", poke(ITEMS, (1, 5), 40)),
        ("overlap", "work_info_set", "MLA293", poke(ITEMS, (2, 4), 40)),
        ("not aligned", "work_info_set[2].kv_start", "MLA293", _both(poke(ITEMS, (2, 4), 40), poke(ITEMS, (1, 5), 40))),
        ("swapped rows", "work_info_set", "MLA293", flip(ITEMS)),
        ("out of range", "work_info_set[2].qo_start", "MLA293", poke(ITEMS, (2, 2), 2)),
        *(
            ("wrong field", f"work_info_set[2].{name}", "MLA294", poke(ITEMS, (2, place), lambda old: old + 1))
            for name, place in (("batch_idx", 0), ("qo_end", 3), ("kv_offset", 6), ("pad", 7))
        ),
        ("not reduced", "reduce_partial_map", "MLA295", put(f"{BUFFERS}.reduce_indptr", tensor([0, 0, 0]))),
        ("row too few", "reduce_indptr", "MLA295", cut(f"{BUFFERS}.reduce_indptr")),
        ("reduced unsplit", "reduce_indptr", "MLA295", put(f"{BUFFERS}.reduce_indptr", tensor([0, 2, 2]))),
        ("wrong row", "reduce_final_map[1]", "MLA295", poke(f"{BUFFERS}.reduce_final_map", 1, 0)),
        ("swapped rows", "reduce_partial_map", "MLA295", flip(f"{BUFFERS}.reduce_partial_map")),
        ("overlap", "work_info_set.partial_qo_loc", "MLA296", poke(ITEMS, (2, 1), 0)),
        ("gap", "work_info_set.partial_qo_loc", "MLA296", poke(ITEMS, (2, 1), 2)),
        ("too small", "work_info_set.partial_qo_loc", "MLA296", cut(f"{BUFFERS}.reduce_partial_map")),
        ("moved buffer", "work_meta_data", "MLA298", _moved("work_info_set")),
        ("stale address", "work_meta_data", "MLA298", put(f"{BUFFERS}.work_meta_data", lambda old: old[[1, 0]])),
    )
    for kind, path, code, change in table:
        yield PlantedFault(kind, "work plan", "PlainWork", f"PlainWork.{path}", (code,), planned_work, change)
