"""Chunked context seen by its consumer: query tokens of a chunk, and how its keys are gathered."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause, lacks
from mla_contract.contract.clauses.context import context_path
from mla_contract.contract.clauses.prefill import prefill_lens
from mla_contract.contract.step.context import StepContext, largest, smallest
from mla_contract.contract.step.views import CHUNK_SHAPE


@clause(
    "MLA309",
    "A chunk's query tokens are those of its requests.",
    invariant="X9",
    incident="vllm#50613",
    example="q=[3,2], chunk of request 1: token_slice 2:5",
    help="take both ends from the prefill offsets",
)
def check_chunk_tokens(subject: StepContext) -> Found:
    """Check token slices and query maxima of the new shape."""
    view, lens = subject.context, prefill_lens(subject)
    if view is None or lens is None or view.shape != CHUNK_SHAPE:
        return lacks("chunk records and batch.query_start_loc_cpu")
    start_loc = [0, *np.cumsum(lens).tolist()]
    for chunk in view.chunks:
        record, first = chunk.record, chunk.first
        last = record.request_slice.stop
        longest = largest(lens[first:last])
        active = smallest(lens[first:last]) > 0 and 0 not in chunk.lens
        for name, wanted, got in (
            ("request_slice", len(chunk.lens), last - first),
            ("token_slice", (start_loc[first], start_loc[last]), (record.token_slice.start, record.token_slice.stop)),
            ("continuation_token_end", start_loc[first + 1], record.continuation_token_end),
            ("max_query_len", longest, record.max_query_len),
            ("all_rows_active", active, record.all_rows_active),
        ):
            if wanted != got:
                path = context_path(subject, f"{chunk.path}.{name}")
                return (Breach(path, "not that of the chunk's requests", str(wanted), str(got)),)
    return FINE


@clause(
    "MLA310",
    "Host sources of asynchronous copies are pinned.",
    invariant="X10",
    incident="vllm#45074",
    example="one prefill with context, seq_lens pageable",
    help="allocate host sources with pin_memory; otherwise the copy blocks",
)
def check_pinned(subject: StepContext) -> Found:
    """Check the host lengths of each chunk."""
    view = subject.context
    if view is None or subject.facts.pinned_sources is None:
        return lacks("metadata.prefill.chunked_context and facts.pinned_sources")
    if not subject.facts.pinned_sources:
        return FINE
    for chunk in view.chunks:
        if chunk.record is not None and not chunk.record.seq_lens.is_pinned():
            return (
                Breach(
                    context_path(subject, f"{chunk.path}.seq_lens"), "host source is pageable", "pinned", "pageable"
                ),
            )
    return FINE


@clause(
    "MLA311",
    "The gather copies when cache and workspace have one dtype, and dequantises otherwise.",
    invariant="X11",
    incident="vllm#48642",
    example="fp8 cache, bf16 workspace, gather kind copy",
    help="decide the gather by both dtypes and the layout, not by the backend's name",
)
def check_gather_kind(subject: StepContext) -> Found:
    """Check the gather's kind."""
    view, facts = subject.context, subject.facts
    if view is None or facts.gather_kind is None or facts.cache_dtype is None:
        return lacks("metadata.prefill.chunked_context and facts.gather_kind")
    dtype = str(view.workspace.dtype).rpartition(".")[2]
    wanted = "copy" if dtype == facts.cache_dtype else "dequantise"
    if facts.gather_kind == wanted:
        return FINE
    got = f"{facts.gather_kind}: cache {facts.cache_dtype}, workspace {dtype}"
    return (Breach(context_path(subject, "workspace"), "wrong kind of gather", wanted, got),)
