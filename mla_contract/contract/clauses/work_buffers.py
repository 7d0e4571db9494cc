"""The persistent work plan as clauses: what ``work_plan`` checks, for a plan that stands in the trace."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mla_contract.contract.clauses.clause import Found, clause
from mla_contract.contract.clauses.need import traced
from mla_contract.contract.clauses.work_plan import CHECKS, HELP, breaches_of, plan_of
from mla_contract.contract.step.context import StepContext

SENTENCES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "MLA291": ("The rows that were planned start at 0, and none is empty.", "kv_indptr=[0,16,16]"),
        "MLA292": (
            "work_indptr is a prefix sum over compute units, and counts no more items than there is room for.",
            "work_indptr=[0,2,1]",
        ),
        "MLA293": (
            "The items of a row lie together and cover each of its positions once, in whole blocks.",
            "row of 32 positions, items [0,16) and [16,24)",
        ),
        "MLA294": ("Every field of an item follows from its row and its range.", "item of row 1 with qo_end=3"),
        "MLA295": (
            "Exactly the split rows are reduced, from their own partial results and into their own row.",
            "row 1 split in two, reduce_indptr=[0,0,0]",
        ),
        "MLA296": ("Partial results do not overlap, leave no gap, and fit.", "two fragments with partial_qo_loc 0"),
        "MLA297": (
            "Only the last item of a compute unit leaves its row unfinished.",
            "work_indptr=[0,1,3] and both fragments of row 1 in unit 1",
        ),
        "MLA298": ("work_meta_data holds the addresses of work_indptr and work_info_set.", "work_info_set cloned"),
    }
)
"""Sentence and smallest example of each check."""


def _state(code: str, sentence: str, example: str) -> None:
    """Register one check of a plan as a clause."""

    def probe(step: StepContext) -> Found:
        given: Any = step.trace.planned_work
        plan = plan_of(given.buffers, given.kv_indptr, given.fold, given.granularity)
        return breaches_of(plan, type(given.buffers).__name__, CHECKS[code])

    probe.__name__ = f"check_plan_{CHECKS[code].__name__.removeprefix('check_')}"
    incident = "vllm#46997 vllm#47042 sglang#16531"
    clause(
        code,
        sentence,
        level="values",
        needs=(traced("planned_work"),),
        incident=incident,
        example=example,
        help=HELP[code],
    )(probe)


for _code, (_sentence, _example) in SENTENCES.items():
    _state(_code, _sentence, _example)
