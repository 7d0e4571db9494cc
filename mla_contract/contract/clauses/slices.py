"""Slices of a batch for micro-batches: every field survives, cut along its own axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import traced
from mla_contract.contract.schema.batch import CommonBatch
from mla_contract.contract.schema.tiers import members
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.host import host, host_copy
from mla_contract.contract.step.trace import Child
from mla_contract.contract.structure.arrays import is_array
from mla_contract.contract.structure.specs import tensors_of


def _children(step: StepContext) -> list[tuple[str, Child]]:
    """Return the children with their paths."""
    slices: Any = step.trace.slices
    return [(f"{type(slices.parent).__name__}[{index}]", child) for index, child in enumerate(slices.children)]


def _parent(step: StepContext) -> Any:
    """Return the batch that was cut."""
    slices: Any = step.trace.slices
    return slices.parent


def _names(record: Any) -> list[str]:
    """Return the public fields of a batch: those of the contract, and those that it declares besides."""
    declared = getattr(type(record), "__dataclass_fields__", {})
    return [name for name in dict.fromkeys([*members(CommonBatch), *declared]) if not name.startswith("_")]


def _axes() -> Iterator[tuple[str, str]]:
    """Yield the array fields of a batch whose first axis is requests, offsets or tokens."""
    for field, spec in tensors_of(CommonBatch):
        if spec.shape.axes:
            yield field.name, spec.shape.axes[0].text


@clause(
    "MLA411",
    "A slice keeps every field that its parent has.",
    needs=(traced("slices"),),
    incident="vllm#43966 vllm#43964 vllm#49542",
    example="q=[600,600] cut at token 600: positions and is_prefilling None",
    help="replace the fields that change instead of listing those that stay",
)
def check_slice_fields(step: StepContext) -> Found:
    """Check that no field of the parent is lost."""
    children = _children(step)
    parent = _parent(step)
    return tuple(
        Breach(f"{path}.{name}", "the slice lost a field of its parent", "a value", "None")
        for path, child in children
        for name in _names(parent)
        if getattr(parent, name, None) is not None and getattr(child.batch, name, None) is None
    )


@clause(
    "MLA412",
    "A slice cuts request fields by requests and token fields by tokens.",
    needs=(traced("slices"),),
    incident="vllm#43966 vllm#48659",
    example="3 + 5 requests: the second slice's table has 3 rows",
    help="choose the cut by the field's named axis",
)
def check_slice_axes(step: StepContext) -> Found:
    """Check the length of every array field of a child."""
    children = _children(step)
    found, flags = [], getattr(_parent(step), "is_prefilling", None)
    for path, child in children:
        requests = child.request_slice.stop - child.request_slice.start
        tokens = child.token_slice.stop - child.token_slice.start
        sizes = {"num_reqs": requests, "num_reqs+1": requests + 1, "num_actual_tokens": tokens}
        if flags is not None:
            # A parent may have none for padding requests.
            sizes["num_flags"] = min(requests, max(flags.shape[0] - child.request_slice.start, 0))
        for name, axis in _axes():
            value = getattr(child.batch, name, None)
            wanted = tokens if axis == "num_padded_tokens" else sizes.get(axis)
            if value is not None and is_array(value) and wanted is not None and value.shape[0] != wanted:
                axes = {"num_reqs": requests, "num_actual_tokens": tokens}
                found.append(
                    Breach(
                        f"{path}.{name}", f"cut along another axis than {axis}", str(wanted), str(value.shape[0]), axes
                    )
                )
    return tuple(found)


@clause(
    "MLA413",
    "The slices' tokens sum to the parent's, and each slice's offsets start at 0 and end at its live tokens.",
    needs=(traced("slices"),),
    incident="vllm#43966",
    example="q=[600,600] cut at 600: second offsets [600,1200]",
    help="subtract the first token of the slice",
)
def check_slice_totals(step: StepContext) -> Found:
    """Check counts and host offsets of the children; tokens behind the parent's last offset are padding.

    Source: vLLM 0.32.0 v1/worker/ubatch_utils.py, maybe_create_ubatch_slices, gives padding to the last slice.
    """
    children = _children(step)
    parent, found = _parent(step), []
    total = sum(child.batch.num_actual_tokens for _, child in children)
    if total != parent.num_actual_tokens:
        path = f"{type(parent).__name__}.num_actual_tokens"
        found.append(Breach(path, "slices do not sum up", str(parent.num_actual_tokens), str(total)))
    whole = host_copy(parent.query_start_loc_cpu)
    for path, child in children:
        start_loc = host_copy(child.batch.query_start_loc_cpu)
        tokens, own = child.batch.num_actual_tokens, child.token_slice
        if whole is not None:
            tokens = min(tokens, max(int(whole[-1]) - own.start, 0))
        if start_loc is not None and (start_loc[0] != 0 or start_loc[-1] != tokens):
            got = f"{start_loc[0]} to {start_loc[-1]}"
            found.append(Breach(f"{path}.query_start_loc_cpu", "offsets are not the slice's", f"0 to {tokens}", got))
    return tuple(found)


@clause(
    "MLA414",
    "Put together again, the slices' slots are the parent's.",
    level="values",
    needs=(traced("slices"),),
    incident="vllm#43966 vllm#48659",
    example="second slice with the slots of the first",
    help="cut slot_mapping by the slice's tokens",
)
def check_slices_restore(step: StepContext) -> Found:
    """Check that slots and positions are the parent's in the child's range."""
    children = _children(step)
    parent = _parent(step)
    for path, child in children:
        for name in ("slot_mapping", "positions"):
            own, whole = getattr(child.batch, name, None), getattr(parent, name, None)
            if own is None or whole is None:
                continue
            if not np.array_equal(host(own), host(whole)[child.token_slice]):
                message = "not the parent's entries in this range"
                wanted = f"tokens [{child.token_slice.start}, {child.token_slice.stop})"
                return (Breach(f"{path}.{name}", message, wanted, "other entries"),)
    return FINE
