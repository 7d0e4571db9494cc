"""Where the contract says what a record holds, it is what the shared plan holds: the comparison of the two."""

from __future__ import annotations

from typing import Any

import numpy as np

from mla_contract.adapters.context_packed import PackedContextPlan
from mla_contract.adapters.plan import BatchPlan
from mla_contract.contract.schema.declaration import BackendDeclaration, Routing
from mla_contract.contract.step.facts import Facts
from mla_contract.contract.step.host import host
from mla_contract.contract.step.views import CHUNK_SHAPE, context_view
from mla_contract.contract.violation import Violation

_HELP = "lower mla_contract.adapters.plan_batch instead of planning again"


def compare_with_plan(
    metadata: Any, plan: BatchPlan, declaration: BackendDeclaration, facts: Facts
) -> tuple[Violation, ...]:
    """Return a violation for each field that differs from the shared plan, under the code of the clause it belongs to.

    Counts are compared where the backend declares the shared split; all-decode backends answer to MLA252 instead.
    Chunks are compared where the facts give the budgets that they are planned by.

    Sync: reads device memory
    """
    found: list[Violation] = []
    name = type(metadata).__name__
    if declaration.routing is Routing.SHARED_SPLIT:
        for count in ("num_decodes", "num_prefills", "num_decode_tokens", "num_prefill_tokens"):
            stated = getattr(metadata, count, None)
            if stated is not None and stated != getattr(plan.split, count):
                found.append(_violation("MLA237", f"{name}.{count}", getattr(plan.split, count), stated))
    found += _token_fields(metadata, plan, name)
    if not any(violation.code == "MLA237" for violation in found):
        found += _context_chunks(metadata, plan, facts, name)
        found += _indexer_chunks(metadata, plan, facts, name)
    return tuple(found)


def _token_fields(metadata: Any, plan: BatchPlan, name: str) -> list[Violation]:
    """Return the differences of arrays with an entry for each token; a record may hold fewer rows than the batch."""
    tokens = plan.tokens
    wanted = {"req_id_per_token": ("MLA253", tokens.requests), "slot_mapping": ("MLA225", plan.slot_mapping)}
    topk = getattr(metadata, "topk_tokens", None)
    if topk is not None:
        sums = np.concatenate([[0], np.cumsum(np.minimum(tokens.visible, topk))])
        wanted["paged_kv_indptr"] = ("MLA383", sums.astype(np.int32))
    found = []
    for field, (code, right) in wanted.items():
        array = getattr(metadata, field, None)
        if array is None or right is None:
            continue
        own = host(array)
        rows = min(len(own), len(right))
        if not np.array_equal(own[:rows], right[:rows]):
            row = int(np.argmax(own[:rows] != right[:rows]))
            found.append(_violation(code, f"{name}.{field}", f"{right[row]} at {row}", own[row]))
    return found


def _context_chunks(metadata: Any, plan: BatchPlan, facts: Facts, name: str) -> list[Violation]:
    """Return the first difference between the context chunks and the planned ones."""
    view = context_view(getattr(getattr(metadata, "prefill", None), "chunked_context", None))
    planned = plan.context
    if view is None or view.shape != CHUNK_SHAPE or facts.context_rows is None:
        return []
    if not isinstance(planned, PackedContextPlan):
        return []
    wanted = [(chunk.request_slice.start, tuple(chunk.seq_lens.tolist())) for chunk in planned.chunks]
    got = [(chunk.first, chunk.lens) for chunk in view.chunks]
    return _first_difference("MLA302", f"{name}.prefill.chunked_context.chunks", wanted, got)


def _indexer_chunks(metadata: Any, plan: BatchPlan, facts: Facts, name: str) -> list[Violation]:
    """Return the first difference between the indexer's chunks and the planned ones."""
    prefill = getattr(metadata, "prefill", None)
    if not hasattr(metadata, "num_prefill_tokens") or prefill is None or plan.indexer is None:
        return []
    if facts.logits_budget_bytes is None:
        return []
    wanted = [(chunk.token_start, chunk.token_end, chunk.total_seq_lens) for chunk in plan.indexer.chunks]
    got = [(chunk.token_start, chunk.token_end, chunk.total_seq_lens) for chunk in prefill.chunks]
    return _first_difference("MLA361", f"{name}.prefill.chunks", wanted, got)


def _first_difference(code: str, path: str, wanted: list[Any], got: list[Any]) -> list[Violation]:
    if wanted == got:
        return []
    for index, (one, other) in enumerate(zip(wanted, got, strict=False)):
        if one != other:
            return [_violation(code, f"{path}[{index}]", one, other)]
    return [_violation(code, path, f"{len(wanted)} chunks", f"{len(got)} chunks")]


def _violation(code: str, path: str, wanted: object, got: object) -> Violation:
    return Violation(code, path, "differs from the shared plan", f"{wanted}", f"{got}", help=_HELP)
