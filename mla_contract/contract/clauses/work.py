"""Calls that must agree, and schedules taken from a cache."""

from __future__ import annotations

from typing import Any

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import traced
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.trace import Reuse

SCHEDULE_INPUTS = (
    "ubatch",
    "layer_group",
    "token_kv_lens",
    "query_lens",
    "num_heads",
    "q_dtype",
    "kv_dtype",
    "page_size",
    "padded_batch",
)
"""What a computed schedule depends on; a key that leaves one out reuses it wrongly."""


@clause(
    "MLA391",
    "The size call, the fill call and the kernel call get the same values.",
    needs=(traced("calls"),),
    incident="vllm#46997 vllm#47276 vllm#38615 vllm#45227 sglang#16531 vllm#55222",
    example="heads 8: info(8), kernel(16)",
    help="make the arguments once and hand the same record to all calls",
)
def check_calls_agree(step: StepContext) -> Found:
    """Check the arguments that two calls share."""
    calls: Any = step.trace.calls
    first: dict[str, tuple[str, object]] = {}
    found = []
    for call in calls:
        for name, value in call.arguments.items():
            origin, wanted = first.setdefault(name, (call.name, value))
            if wanted != value:
                text = f"{wanted}   (as in {origin})"
                found.append(Breach(f"{call.name}.{name}", "calls disagree", text, str(value)))
    return tuple(found)


@clause(
    "MLA392",
    "A computed schedule is reused only if all its inputs are equal.",
    needs=(traced("reuse"),),
    incident="vllm#47766 vllm#47567 aiter#4076 vllm#48659",
    example="topk 4, q=8: ctx 0 and ctx 8, one key min(s, topk)=4",
    help="put every input into the key: per-token lengths, not their maximum; and the micro-batch",
)
def check_reuse(step: StepContext) -> Found:
    """Check the inputs of every schedule that came from a cache."""
    reuse: Any = step.trace.reuse
    return tuple(breach for one in reuse for breach in _reuse_breaches(one))


def _reuse_breaches(reuse: Reuse) -> list[Breach]:
    """Return the breaches of one reuse."""
    found = []
    for name in dict.fromkeys([*SCHEDULE_INPUTS, *reuse.stored, *reuse.current]):
        if name not in reuse.stored or name not in reuse.current:
            got = "only one side names it"
            if name in reuse.stored or name in reuse.current:
                found.append(Breach(f"{reuse.name}.{name}", "an input is not compared", "part of the key", got))
            continue
        stored, current = reuse.stored[name], reuse.current[name]
        if not _equal(stored, current):
            found.append(Breach(f"{reuse.name}.{name}", "reused with another input", str(stored), str(current)))
    return found


def _equal(left: Any, right: Any) -> bool:
    """Return whether two inputs are equal, as a plain bool."""
    return bool(left == right)


@clause(
    "MLA393",
    "Metadata belongs to the step of its batch.",
    needs=(traced("generation"),),
    incident="vllm#48261 ATOM#2044",
    example="metadata of step 6 with the batch of step 7",
    help="build in every step, also in idle ones",
)
def check_generation(step: StepContext) -> Found:
    """Check the step counters."""
    generation: Any = step.trace.generation
    own, batch = generation
    if own == batch:
        return FINE
    return (Breach(step.name, "metadata of another step", f"step {batch}", f"step {own}"),)
