"""Chunked context, as far as elements of device arrays decide it."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause, lacks
from mla_contract.contract.clauses.owners import offsets, repeats_rows
from mla_contract.contract.clauses.prefill import prefill_lens
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.host import host
from mla_contract.contract.step.views import CHUNK_SHAPE


@clause(
    "MLA321",
    "The starts on the device continue where the previous chunk ended; under DCP in local rows.",
    level="values",
    invariant="X2",
    incident="vllm#28514 vllm#50613",
    example="ctx=[10], chunks 4,4,2, starts 0,4,6",
    help="local start = ceil(start / virtual block) * interleave",
)
def check_context_starts(subject: StepContext) -> Found:
    """Check the start positions."""
    view, facts = subject.context, subject.facts
    if view is None:
        return lacks("metadata.prefill.chunked_context")
    if facts.dcp_size > 1 and view.shape != CHUNK_SHAPE:
        return lacks("chunk records: the old shape is not read under DCP")
    done = np.zeros(max([0, *(chunk.first + len(chunk.lens) for chunk in view.chunks)]), np.int64)
    for chunk in view.chunks:
        rows = slice(chunk.first, chunk.first + len(chunk.lens))
        wanted = (
            -(-done[rows] // facts.virtual_block) * facts.dcp_interleave if facts.dcp_size > 1 else done[rows].copy()
        )
        done[rows] += chunk.sizes
        got = host(chunk.starts)
        if np.array_equal(got, wanted):
            continue
        wrong = np.flatnonzero((got != wanted) & (chunk.sizes > 0))
        if len(wrong):
            row = int(wrong[0])
            path = f"{subject.name}.prefill.chunked_context.{chunk.path}"
            return (Breach(f"{path}.starts", "start is wrong", f"{wanted[row]} at row {row}", str(got[row])),)
    return FINE


@clause(
    "MLA322",
    "The prefix sums and the owners of a chunk follow its lengths.",
    level="values",
    invariant="X5",
    incident="vllm#15492 vllm#27491",
    example="lens=[4,3], cu=[0,4,8]",
    help="build both from the same lengths",
)
def check_context_offsets(subject: StepContext) -> Found:
    """Check ``cu_seq_lens`` and ``token_to_seq``."""
    view = subject.context
    if view is None:
        return lacks("metadata.prefill.chunked_context")
    if subject.facts.dcp_size > 1 and view.shape != CHUNK_SHAPE:
        return lacks("chunk records: the old shape is not read under DCP")
    for chunk in view.chunks:
        path = f"{subject.name}.prefill.chunked_context.{chunk.path}"
        wanted, got = offsets(chunk.sizes), host(chunk.cu_seq_lens)
        if not np.array_equal(got, wanted):
            return (Breach(f"{path}.cu_seq_lens", "not the sums of lens", str(wanted[:5]), str(got[:5])),)
        stated = host(chunk.token_to_seq)[: int(wanted[-1])]
        if repeats_rows(stated, chunk.sizes):
            continue
        owners = np.repeat(np.arange(len(chunk.lens)), chunk.sizes)
        wrong = stated != owners
        if np.count_nonzero(wrong):
            token = int(np.argmax(wrong))
            got_text = f"{stated[token]} at token {token}"
            return (Breach(f"{path}.token_to_seq", "token has another owner", str(owners[token]), got_text),)
    return FINE


@clause(
    "MLA323",
    "A chunk's query offsets are those of its requests, from 0.",
    level="values",
    invariant="X9",
    incident="vllm#50613",
    example="q=[3,2], chunk of both: [0,3,6]",
    help="subtract the first request's offset",
)
def check_chunk_query_offsets(subject: StepContext) -> Found:
    """Check the query offsets of each chunk record."""
    view, lens = subject.context, prefill_lens(subject)
    if view is None or lens is None:
        return lacks("chunk records and batch.query_start_loc_cpu")
    for chunk in view.chunks:
        if chunk.record is None:
            continue
        wanted = offsets(lens[chunk.first : chunk.first + len(chunk.lens)])
        got = host(chunk.record.query_start_loc)
        if not np.array_equal(got, wanted):
            path = f"{subject.name}.prefill.chunked_context.{chunk.path}.query_start_loc"
            return (Breach(path, "not the offsets of the requests", str(wanted[:5]), str(got[:5])),)
    return FINE
