"""Scratch memory: what is reserved is what is used."""

from __future__ import annotations

from typing import Any

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import Need, traced
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.trace import Lane

WORKSPACE = traced("workspace")
ROWS = Need(
    "trace.workspace.rows and alignment",
    lambda step: (
        step.trace.workspace is not None
        and step.trace.workspace.rows is not None
        and step.trace.workspace.alignment is not None
    ),
    traced=True,
)
SITES = Need(
    "trace.workspace.sites and planned_sites",
    lambda step: (
        step.trace.workspace is not None
        and step.trace.workspace.sites is not None
        and step.trace.workspace.planned_sites is not None
    ),
    traced=True,
)


def _name(slot: Lane) -> str:
    return f"workspace[ubatch {slot.ubatch}, {slot.lane}]"


@clause(
    "MLA401",
    "Each slot reserves at least what its largest reachable request takes.",
    needs=(WORKSPACE,),
    incident="vllm#45032 vllm#43026 vllm#41700 local-inference-lab/vllm#1",
    example="61 MB wanted, 0 reserved",
    help="reserve by formula from the configuration, not by the profiling batch",
)
def check_reserved(step: StepContext) -> Found:
    """Check reservations against needs, slot by slot."""
    space: Any = step.trace.workspace
    return tuple(
        Breach(_name(slot), "less is reserved than used", f"at least {need} bytes", f"{space.reserved_bytes[slot]}")
        for slot, need in space.needed_bytes.items()
        if slot in space.reserved_bytes and space.reserved_bytes[slot] < need
    )


@clause(
    "MLA402",
    "Nothing is reserved that no request can use, beyond the accepted slack.",
    needs=(WORKSPACE,),
    incident="vllm#55132 vllm#55222 vllm#57701 vllm#25290",
    example="8192 x 1048576 x 4 = 32 GiB instead of 256 x 1048576 x 4 = 1 GiB",
    help="bound decode rows by max_num_seqs * next_n, prefill rows by max_num_batched_tokens",
)
def check_tightness(step: StepContext) -> Found:
    """Check reservations for excess."""
    space: Any = step.trace.workspace
    found = []
    for slot, reserved in space.reserved_bytes.items():
        most = int(space.slack * space.needed_bytes.get(slot, 0))
        if slot in space.needed_bytes and reserved > most:
            found.append(
                Breach(_name(slot), "more is reserved than used", f"at most {most} bytes", f"{reserved} bytes")
            )
    return tuple(found)


@clause(
    "MLA403",
    "Sizes keep the alignment that is needed later, after every clamp.",
    needs=(ROWS,),
    incident="vllm#41229 vllm-ascend#5767",
    example="rows 65535 after max(), alignment 128",
    help="round last",
)
def check_aligned_rows(step: StepContext) -> Found:
    """Check the rows of the context workspace."""
    space: Any = step.trace.workspace
    if space.rows % space.alignment == 0:
        return FINE
    got = f"{space.rows}, remainder {space.rows % space.alignment}"
    return (Breach("workspace.rows", "rows are not aligned", f"a multiple of {space.alignment}", got),)


@clause(
    "MLA404",
    "Every micro-batch and lane has its own reservation; captured and eager users do not share one.",
    needs=(WORKSPACE,),
    incident="vllm#42275 vllm#41858 vllm#57388 vllm#56771",
    example="2 micro-batches, reserved in the first only",
    help="reserve in each slot; give captured graphs a lane of their own",
)
def check_slots(step: StepContext) -> Found:
    """Check that slots are reserved and apart."""
    space: Any = step.trace.workspace
    found = [
        Breach(_name(slot), "a slot is used and not reserved", f"{need} bytes", "nothing")
        for slot, need in space.needed_bytes.items()
        if slot not in space.reserved_bytes
    ]
    found += [
        Breach(_name(slot), "captured and eager users share a slot", "slots of their own", "one slot")
        for slot in sorted(space.captured_slots & space.eager_slots, key=_name)
    ]
    return tuple(found)


@clause(
    "MLA405",
    "Whoever asks for scratch after the lock is reached in profiling, or stands in the plan.",
    needs=(SITES,),
    incident="vllm#45032 vllm#41700 vllm#43327",
    example="an fp8 scratch first asked for by the first real prefill",
    help="ask for the plan's arrays in the profiling run",
)
def check_sites(step: StepContext) -> Found:
    """Check the places that ask against the plan."""
    space: Any = step.trace.workspace
    return tuple(
        Breach(f"workspace site {site}", "asks for scratch outside the plan", "a planned site", "unplanned")
        for site in sorted(space.sites - space.planned_sites)
    )
