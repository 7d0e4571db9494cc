"""What a context chunk says besides its lengths: its place, whether it continues a request, and its local rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.context import context_path, planned_context
from mla_contract.contract.clauses.need import CHUNK_RECORDS, CONTEXT, READABLE_SHAPE, Need
from mla_contract.contract.clauses.owners import equal, offsets, repeats_rows
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.host import host


def has_padded_lens(step: StepContext) -> bool:
    """Return whether any chunk states local lengths, as a record of context parallelism does."""
    return any(chunk.padded_local is not None for chunk in step.context.chunks)


LOCAL_LENS = Need(
    "facts.dcp_size: the record is of context parallelism",
    lambda step: step.facts.dcp_size > 1 or not has_padded_lens(step),
    of=CONTEXT,
)
DEVICE_CONTEXT_LENS = Need(
    "metadata.prefill.chunked_context.context_lens",
    lambda step: getattr(step.chunked_context, "context_lens", None) is not None,
    of=CONTEXT,
)
PADDED_LOCAL_LENS = Need("padded local lengths", has_padded_lens, of=CONTEXT)


@clause(
    "MLA312",
    "The index of a chunk is its place in the list.",
    needs=(CHUNK_RECORDS,),
    incident="vllm#50613",
    example="two chunks, indexes 0 and 0",
    help="number the chunks in the order in which they are run",
)
def check_chunk_index(step: StepContext) -> Found:
    """Check ``index`` of each chunk record."""
    view = step.context
    for place, chunk in enumerate(view.chunks):
        if chunk.record.index != place:
            path = context_path(step, f"{chunk.path}.index")
            return (Breach(path, "not the place in the list", str(place), str(chunk.record.index)),)
    return FINE


@clause(
    "MLA313",
    "A chunk is a continuation exactly when its first request's context began in an earlier chunk.",
    needs=(CHUNK_RECORDS,),
    incident="vllm#50613",
    example="ctx=[10], chunks of 4, 4, 2 flagged False, True, False",
    help="compare the first request's start with 0; the consumer merges partial results by this flag",
)
def check_continuation(step: StepContext) -> Found:
    """Check ``is_continuation`` of each chunk record."""
    view = step.context
    for chunk, starts in zip(view.chunks, step.chunk_starts[0], strict=True):
        if not len(starts):
            continue
        wanted, got = starts.item(0) > 0, chunk.record.is_continuation
        if got != wanted:
            path = context_path(step, f"{chunk.path}.is_continuation")
            text = f"{wanted}   (prefill {chunk.first} starts at {starts[0]})"
            return (Breach(path, "does not follow the first request's start", text, str(got)),)
    return FINE


@clause(
    "MLA314",
    "The host copy of the local starts is there exactly under DCP, and follows from the starts.",
    needs=(CHUNK_RECORDS, LOCAL_LENS),
    incident="vllm#28514 vllm#50613",
    example="dcp 2, interleave 2, starts [0,8]: local starts [0,4], not [0,8]",
    help="local start = ceil(start / virtual block) * interleave",
)
def check_local_starts(step: StepContext) -> Found:
    """Check ``local_starts`` of each chunk record."""
    view, facts = step.context, step.facts
    for chunk, starts in zip(view.chunks, step.chunk_starts[0], strict=True):
        got = chunk.record.local_starts
        wanted = [facts.padded_rows(start) for start in starts.tolist()] if facts.dcp_size > 1 else None
        if (got if got is None else list(got)) != wanted:
            path = context_path(step, f"{chunk.path}.local_starts")
            axes = {"dcp_size": facts.dcp_size, "dcp_interleave": facts.dcp_interleave}
            return (Breach(path, "not the local starts", str(wanted), str(got), axes),)
    return FINE


@clause(
    "MLA324",
    "The context lengths on the device are those of the host, and the sums over the chunks.",
    level="values",
    needs=(CONTEXT, READABLE_SHAPE, DEVICE_CONTEXT_LENS),
    incident="vllm#50497 vllm#50613",
    example="context_lens_list=[7,8], context_lens=[7,9]",
    help="copy the host list to the device once, and plan from the same list",
)
def check_device_context(step: StepContext) -> Found:
    """Check ``context_lens`` in either shape."""
    view = step.context
    stated = getattr(step.prefill.chunked_context, "context_lens", None)
    got, planned = host(stated), planned_context(step, step.num_prefills or 0)
    path = context_path(step, "context_lens")
    if view.context_lens is not None:
        found = _differs(path, "not the lengths on the host", got, np.array(view.context_lens, np.int64))
        if found:
            return found
    return _differs(path, "not the sums over chunks", got, planned)


@clause(
    "MLA325",
    "The prefix sums and the owners of gathered local rows follow the padded local lengths.",
    level="values",
    needs=(CONTEXT, PADDED_LOCAL_LENS),
    incident="vllm#28476 vllm#28411",
    example="dcp 2, padded lens=[4,2], padded cu=[0,4,8]",
    help="build both from the padded local lengths, which are the same on every rank",
)
def check_padded_offsets(step: StepContext) -> Found:
    """Check ``padded_local_cu_seq_lens`` in either shape, and ``padded_local_token_to_seq`` of chunk records."""
    view = step.context
    for chunk in view.chunks:
        if chunk.padded_local is None:
            continue
        lens = np.array(chunk.padded_local, np.int64)
        if chunk.padded_cu_seq_lens is not None:
            wanted, got = offsets(lens), host(chunk.padded_cu_seq_lens)
            if not equal(got, wanted):
                path = context_path(step, chunk.field_path("padded_local_cu_seq_lens"))
                return (Breach(path, "not the sums of padded local lengths", str(wanted[:5]), str(got[:5])),)
        if chunk.padded_token_to_seq is not None:
            owners = host(chunk.padded_token_to_seq)
            if not repeats_rows(owners, lens):
                path = context_path(step, f"{chunk.path}.padded_local_token_to_seq")
                text = f"{lens.sum()} owners, in order"
                return (Breach(path, "a local row has another owner", text, str(owners[:5])),)
    return FINE


def _differs(path: str, message: str, got: Any, wanted: Any) -> Found:
    """Return the breach at the first element that differs."""
    if equal(got, wanted):
        return FINE
    if len(got) != len(wanted):
        return (Breach(path, message, f"{len(wanted)} lengths", str(len(got))),)
    row = int(np.argmax(got != wanted))
    return (Breach(path, message, f"{wanted[row]} for prefill {row}", str(got[row])),)
