"""Copies of a record's contract fields, to compare two steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mla_contract.contract.schema.tiers import TIERS
from mla_contract.contract.step.host import host
from mla_contract.contract.structure.arrays import is_array
from mla_contract.contract.structure.specs import specs_of
from mla_contract.contract.violation import Violation
from mla_contract.runtime.check import protocol_of

UNDECIDED = frozenset(
    {
        "paged_kv_indices",
        "workspace",
        "topk_mask_workspace",
        "schedule_metadata",
        "work_meta_data",
        "work_indptr",
        "work_info_set",
        "reduce_indptr",
        "reduce_final_map",
        "reduce_partial_map",
    }
)
"""Scratch, and arrays that a kernel fills later: their elements say nothing of the step."""
_NAMES = frozenset(name for level in TIERS.values() for name in specs_of(level))


def snapshot(record: Any) -> Mapping[str, Any]:
    """Return a copy of every field that the contract names, by path; arrays become host arrays.

    Sync: reads device memory
    """
    found: dict[str, Any] = {}
    for name in specs_of(protocol_of(record)):
        _collect(getattr(record, name, None), name, found)
    return found


def _collect(value: Any, path: str, found: dict[str, Any]) -> None:
    if path.rpartition(".")[2] in UNDECIDED:
        return
    if is_array(value):
        found[path] = host(value).copy()
    elif isinstance(value, list | tuple):
        found[f"{path}.len"] = len(value)
        for index, item in enumerate(value):
            _collect(item, f"{path}[{index}]", found)
    elif value is None or isinstance(value, int | float | str | slice) or type(value).__name__ == "dtype":
        found[path] = value
    else:
        for name in sorted(_NAMES):
            if hasattr(value, name):
                _collect(getattr(value, name), f"{path}.{name}", found)


def compare_snapshots(wanted: Mapping[str, Any], got: Mapping[str, Any], record: Any) -> list[Violation]:
    """Return a violation for each field that another step has changed."""
    found = []
    for path in dict.fromkeys([*wanted, *got]):
        one, other = wanted.get(path), got.get(path)
        same = (
            np.array_equal(one, other)
            if isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
            else one == other
        )
        if not same:
            found.append(
                Violation(
                    "MLA393",
                    f"{type(record).__name__}.{path}",
                    "state of another step is left in the record",
                    f"{_text(one)}   (as when the batch comes first)",
                    _text(other),
                    help="write every element of a persistent buffer at every step, also behind the live rows",
                )
            )
    return found


def _text(value: Any) -> str:
    return f"{value.reshape(-1)[:6].tolist()}" if isinstance(value, np.ndarray) else f"{value}"
