"""Chunked context, as far as elements of device arrays decide it."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import CONTEXT, DECODES, READABLE_SHAPE, START_LOC
from mla_contract.contract.clauses.owners import equal, offsets, repeats_rows
from mla_contract.contract.clauses.prefill import prefill_lens
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.host import host


@clause(
    "MLA321",
    "The starts on the device continue where the previous chunk ended; under DCP in local rows.",
    level="values",
    needs=(CONTEXT, READABLE_SHAPE),
    incident="vllm#28514 vllm#50613",
    example="ctx=[10], chunks 4,4,2, starts 0,4,6",
    help="local start = ceil(start / virtual block) * interleave",
)
def check_context_starts(step: StepContext) -> Found:
    """Check the start positions."""
    view, facts = step.context, step.facts
    for chunk, starts in zip(view.chunks, step.chunk_starts[0], strict=True):
        wanted = -(-starts // facts.virtual_block) * facts.dcp_interleave if facts.dcp_size > 1 else starts
        got = host(chunk.starts)
        if equal(got, wanted):
            continue
        wrong = np.flatnonzero((got != wanted) & (chunk.sizes > 0))
        if len(wrong):
            row = int(wrong[0])
            path = f"{step.name}.prefill.chunked_context.{chunk.path}"
            return (Breach(f"{path}.starts", "start is wrong", f"{wanted[row]} at row {row}", str(got[row])),)
    return FINE


@clause(
    "MLA322",
    "The prefix sums and the owners of a chunk follow its lengths.",
    level="values",
    needs=(CONTEXT, READABLE_SHAPE),
    incident="vllm#15492 vllm#27491",
    example="lens=[4,3], cu=[0,4,8]",
    help="build both from the same lengths",
)
def check_context_offsets(step: StepContext) -> Found:
    """Check ``cu_seq_lens`` and ``token_to_seq``."""
    view = step.context
    for chunk in view.chunks:
        path = f"{step.name}.prefill.chunked_context.{chunk.path}"
        wanted, got = offsets(chunk.sizes), host(chunk.cu_seq_lens)
        if not equal(got, wanted):
            return (Breach(f"{path}.cu_seq_lens", "not the sums of lens", str(wanted[:5]), str(got[:5])),)
        stated = host(chunk.token_to_seq)[: int(wanted[-1])]
        if repeats_rows(stated, chunk.sizes):
            continue
        owners = np.repeat(np.arange(len(chunk.sizes)), chunk.sizes)
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
    needs=(CONTEXT, DECODES, START_LOC),
    incident="vllm#50613",
    example="q=[3,2], chunk of both: [0,3,6]",
    help="subtract the first request's offset",
)
def check_chunk_query_offsets(step: StepContext) -> Found:
    """Check the query offsets of each chunk record."""
    view, lens = step.context, prefill_lens(step)
    for chunk in view.chunks:
        if chunk.record is None:
            continue
        wanted = offsets(lens[chunk.first : chunk.last])
        got = host(chunk.record.query_start_loc)
        if not equal(got, wanted):
            path = f"{step.name}.prefill.chunked_context.{chunk.path}.query_start_loc"
            return (Breach(path, "not the offsets of the requests", str(wanted[:5]), str(got[:5])),)
    return FINE
