"""Chunked context seen by its consumer: query tokens of a chunk, and how its keys are gathered."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.context import context_path
from mla_contract.contract.clauses.need import CHUNK_RECORDS, CONTEXT, DECODES, START_LOC, fact
from mla_contract.contract.clauses.prefill import prefill_lens
from mla_contract.contract.step.context import StepContext, largest, smallest

_OF_REQUESTS = ("request_slice", "token_slice", "continuation_token_end", "max_query_len", "all_rows_active")


@clause(
    "MLA309",
    "A chunk's query tokens are those of its requests.",
    needs=(CHUNK_RECORDS, DECODES, START_LOC),
    incident="vllm#50613",
    example="q=[3,2], chunk of request 1: token_slice 2:5",
    help="take both ends from the prefill offsets",
)
def check_chunk_tokens(step: StepContext) -> Found:
    """Check token slices and query maxima of the new shape."""
    view, lens = step.context, prefill_lens(step)
    start_loc = [0, *np.add.accumulate(lens).tolist()]
    for chunk in view.chunks:
        record, first = chunk.record, chunk.first
        last = record.request_slice.stop
        own, tokens = lens[first:last], record.token_slice
        active = smallest(own) > 0 and chunk.shortest > 0
        ends, longest = record.continuation_token_end, record.max_query_len
        stated = [last - first, (tokens.start, tokens.stop), ends, longest, record.all_rows_active]
        wanted = [chunk.last - first, (start_loc[first], start_loc[last]), start_loc[first + 1], largest(own), active]
        if stated == wanted:
            continue
        for name, right, got in zip(_OF_REQUESTS, wanted, stated, strict=True):
            if right != got:
                path = context_path(step, f"{chunk.path}.{name}")
                return (Breach(path, "not that of the chunk's requests", str(right), str(got)),)
    return FINE


@clause(
    "MLA310",
    "Host sources of asynchronous copies are pinned.",
    needs=(CONTEXT, fact("pinned_sources")),
    incident="vllm#45074",
    example="one prefill with context, seq_lens pageable",
    help="allocate host sources with pin_memory; otherwise the copy blocks",
)
def check_pinned(step: StepContext) -> Found:
    """Check the host lengths of each chunk."""
    view = step.context
    if not step.facts.pinned_sources:
        return FINE
    for chunk in view.chunks:
        if chunk.record is not None and not chunk.record.seq_lens.is_pinned():
            return (
                Breach(context_path(step, f"{chunk.path}.seq_lens"), "host source is pageable", "pinned", "pageable"),
            )
    return FINE


@clause(
    "MLA311",
    "The gather copies when cache and workspace have one dtype, and dequantises otherwise.",
    needs=(CONTEXT, fact("gather_kind"), fact("cache_dtype")),
    incident="vllm#48642",
    example="fp8 cache, bf16 workspace, gather kind copy",
    help="decide the gather by both dtypes and the layout, not by the backend's name",
)
def check_gather_kind(step: StepContext) -> Found:
    """Check the gather's kind."""
    view, facts = step.context, step.facts
    dtype = str(view.workspace.dtype).rpartition(".")[2]
    wanted = "copy" if dtype == facts.cache_dtype else "dequantise"
    if facts.gather_kind == wanted:
        return FINE
    got = f"{facts.gather_kind}: cache {facts.cache_dtype}, workspace {dtype}"
    return (Breach(context_path(step, "workspace"), "wrong kind of gather", wanted, got),)
