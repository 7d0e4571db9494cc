"""Chunked context, in either shape, as far as host values decide it."""

from __future__ import annotations

from typing import Any

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import (
    CHUNK_RECORDS,
    CONTEXT,
    CONTEXT_LENS,
    DCP,
    DECODES,
    PREFILL,
    READABLE_SHAPE,
    Need,
    fact,
)
from mla_contract.contract.clauses.prefill import prefill_lens
from mla_contract.contract.step.context import Ints, StepContext, largest
from mla_contract.contract.step.views import CHUNK_SHAPE, ChunkView

WANTED_CONTEXT = Need(
    "batch.seq_lens_cpu_upper_bound, or context lengths on the host",
    lambda step: wanted_context(step) is not None,
    of=CONTEXT,
)
ALIGNMENT = Need("facts.gather_by_page", lambda step: step.facts.context_alignment() is not None, settled=True)
EMPTY_CELLS = Need(
    "batch.query_start_loc_cpu for chunk records",
    lambda step: step.query_lens is not None or not CHUNK_RECORDS.is_met(step),
    of=CONTEXT,
)


def wanted_context(step: StepContext) -> Any:
    """Return the cached tokens of each prefill: by the batch's host bounds, else by the record; None of neither."""
    if step.context_lens is not None and step.num_decodes is not None:
        return step.context_lens[step.num_decodes :]
    view = step.context
    return None if view is None or view.context_lens is None else np.array(view.context_lens)


def planned_context(step: StepContext, size: int) -> Ints:
    """Return the context tokens of each prefill that all chunks together hold, of ``size`` prefills or more."""
    done = step.chunk_starts[1]
    return done if len(done) >= size else np.concatenate([done, np.zeros(size - len(done), np.int64)])


def context_path(step: StepContext, tail: str = "") -> str:
    """Return how reports name a part of the chunked context."""
    return f"{step.name}.prefill.chunked_context{'.' + tail if tail else ''}"


def _no_local_lens(step: StepContext, chunk: ChunkView) -> Breach:
    """Return the breach of a chunk without local lengths."""
    path = context_path(step, chunk.field_path("padded_local_seq_lens"))
    return Breach(path, "no local lengths under DCP", "padded local lengths", "None")


@clause(
    "MLA301",
    "Chunked context is there exactly when a prefill has cached tokens, never by a flag.",
    needs=(PREFILL, DECODES, CONTEXT_LENS),
    incident="vllm#14009 vllm#14069",
    example="q=[4], s=[20], chunked prefill off: None",
    help="decide by the context lengths of this batch",
)
def check_context_present(step: StepContext) -> Found:
    """Check presence of the record against the batch."""
    context = step.context_lens
    longest = largest(context[step.num_decodes :])
    if (longest > 0) == (step.chunked_context is not None):
        return FINE
    wanted = f"a plan for up to {longest} cached tokens" if longest > 0 else "None: no prefill has cached tokens"
    got = "None" if longest > 0 else "a plan"
    return (Breach(context_path(step), "presence does not follow the cached tokens", wanted, got),)


@clause(
    "MLA302",
    "The chunks of each request partition its cached tokens: no gap, no overlap.",
    needs=(CONTEXT, WANTED_CONTEXT),
    incident="vllm#50497 vllm#50613",
    example="ctx=[10], chunks of 4 and 4",
    help="advance each request's start by what the previous chunk took",
)
def check_context_sums(step: StepContext) -> Found:
    """Check the sums over chunks."""
    view = step.context
    wanted = wanted_context(step)
    done = planned_context(step, len(wanted))
    tokens = wanted.tolist()
    if len(done) > len(wanted):
        got = f"request {len(done) - 1} of {len(wanted)}"
        return (Breach(context_path(step, "chunks"), "a chunk names no prefill", f"below {len(wanted)}", got),)
    if done.tolist() != tokens:
        row = int(np.argmax(done != wanted))
        got = f"{done[row]} in chunks, prefill {row}"
        return (Breach(context_path(step, "chunks"), "chunks do not cover the context", f"{wanted[row]} tokens", got),)
    if view.context_lens is None or list(view.context_lens) == tokens:
        return FINE
    path, got = context_path(step, "context_lens_list"), str(list(view.context_lens)[:4])
    return (Breach(path, "not the cached tokens", str(wanted[:4].tolist()), got),)


@clause(
    "MLA303",
    "Every chunk start, and every length that a request is split at, is aligned to page and interleave.",
    needs=(CONTEXT, ALIGNMENT),
    incident="vllm#41229 vllm-ascend#5767",
    example="ws=65536, dcp=8, n=3: chunk 21845, 21845 % 8 = 5",
    help="round to lcm(block size, ranks * interleave) on every platform",
)
def check_context_alignment(step: StepContext) -> Found:
    """Check starts and split lengths."""
    alignment = step.known.context_alignment()
    for chunk, starts in zip(step.context.chunks, step.chunk_starts[0], strict=True):
        wrong = np.flatnonzero((starts % alignment != 0) & (chunk.sizes != 0))
        if len(wrong):
            start = int(starts[wrong[0]])
            got = f"start {start} of prefill {chunk.first + wrong[0]}, remainder {start % alignment}"
            axes = {"dcp_size": step.facts.dcp_size, "alignment": alignment}
            wanted = f"a multiple of {alignment}"
            return (Breach(context_path(step, chunk.path), "a chunk is not aligned", wanted, got, axes),)
    return FINE


@clause(
    "MLA304",
    "A chunk fits the workspace: its tokens, or under DCP its padded local rows times the ranks.",
    needs=(CONTEXT,),
    incident="vllm#25290 vllm#50613",
    example="ws=8, chunk of 12 rows",
    help="plan chunks by the rows that the gather writes",
)
def check_context_fits(step: StepContext) -> Found:
    """Check each chunk against the workspace."""
    view, facts = step.context, step.facts
    rows = facts.context_rows if facts.context_rows is not None else int(view.workspace.shape[0])
    budget = rows // facts.dcp_size
    for chunk in view.chunks:
        if facts.dcp_size > 1 and chunk.padded_local is None:
            return (_no_local_lens(step, chunk),)
        name = "seq_lens" if chunk.padded_local is None else "padded_local_seq_lens"
        used = chunk.tokens if chunk.padded_local is None else sum(chunk.padded_local)
        if used > budget:
            axes = {"workspace_rows": rows, "dcp_size": facts.dcp_size}
            path = context_path(step, chunk.field_path(name))
            return (Breach(path, "chunk exceeds the workspace", f"at most {budget}", str(used), axes),)
    return FINE


@clause(
    "MLA305",
    "The totals and maxima of a chunk are those of its lengths.",
    needs=(CONTEXT, READABLE_SHAPE),
    incident="vllm#15492",
    example="lens=[4,3], num_context_tokens=8",
    help="derive totals and maxima from the lengths",
)
def check_context_totals(step: StepContext) -> Found:
    """Check host totals, host maxima and the length of the owner array."""
    view, found = step.context, []
    for chunk in view.chunks:
        total, longest = chunk.tokens, chunk.longest
        local = total if chunk.padded_local is None else sum(chunk.padded_local)
        owners = chunk.token_to_seq.shape[0]
        for name, what, wanted, got in (
            ("num_context_tokens", "total of tokens", total, chunk.total),
            ("num_local_context_tokens", "rows of this rank", local, chunk.local_total),
            ("max_seq_len", "longest slice", longest if chunk.padded_local is None else chunk.max_len, chunk.max_len),
        ):
            if wanted != got:
                path = context_path(step, chunk.field_path(name))
                found.append(Breach(path, f"{what} is wrong", str(wanted), str(got)))
        if owners < total or (chunk.record is not None and owners != total):
            path = context_path(step, chunk.field_path("token_to_seq"))
            found.append(Breach(path, "owners differ from tokens", str(total), str(owners)))
    return tuple(found)


@clause(
    "MLA306",
    "A request without tokens in a chunk is left out of it, or the chunk says so; those without context are listed.",
    needs=(CONTEXT, EMPTY_CELLS),
    incident="vllm#27491 vllm#15492 vllm#49294 vllm#49334",
    example="ctx=[4,12], chunk 4: cells [[4,4],[0,4],[0,4]]",
    help="the consumer gives empty cells output 0 and LSE -inf; tell it which they are",
)
def check_empty_cells(step: StepContext) -> Found:
    """Check how empty cells are declared."""
    view = step.context
    if view.shape != CHUNK_SHAPE:
        for index, (chunk, flag) in enumerate(zip(view.chunks, view.flagged_empty or (), strict=True)):
            if flag != (chunk.shortest == 0):
                path = context_path(step, f"has_empty_context[{index}]")
                return (Breach(path, "empty cells are not declared", str(chunk.shortest == 0), str(flag)),)
        return FINE
    for chunk in view.chunks:
        if chunk.shortest == 0:
            path = context_path(step, f"{chunk.path}.seq_lens")
            return (
                Breach(path, "a chunk holds a request without tokens", "positive lengths", str(list(chunk.lens[:4]))),
            )
    lens, context = prefill_lens(step), wanted_context(step)
    if not view.empty_slices and np.count_nonzero(context) == len(context):
        return FINE
    ends = np.cumsum(lens).tolist()
    wanted = [
        (end - length, end) for end, length, own in zip(ends, lens.tolist(), context.tolist(), strict=True) if own == 0
    ]
    got = [(cut.start, cut.stop) for cut in view.empty_slices or ()]
    if got == wanted:
        return FINE
    path = context_path(step, "empty_token_slices")
    return (Breach(path, "not the prefills without context", str(wanted[:4]), str(got[:4])),)


@clause(
    "MLA307",
    "Under DCP the ranks' true local lengths sum to the context, and padded lengths follow from start and length.",
    needs=(CONTEXT, DCP, READABLE_SHAPE),
    incident="vllm#28476 vllm#28411 vllm#28514",
    example="dcp 2, interleave 1, ctx=[10], chunk 4: local 2,2,1 and not 5",
    help="derive a chunk's local rows from what remains in that chunk",
)
def check_local_lens(step: StepContext) -> Found:
    """Check the local lengths of each chunk."""
    view, facts = step.context, step.facts
    for chunk, first in zip(view.chunks, step.chunk_starts[0], strict=True):
        if chunk.padded_local is None:
            return (_no_local_lens(step, chunk),)
        path = context_path(step, chunk.field_path("padded_local_seq_lens"))
        for row, (start, length, got) in enumerate(
            zip(first.tolist(), chunk.lens, chunk.padded_local, strict=True), chunk.first
        ):
            wanted = facts.padded_rows(start + length) - facts.padded_rows(start)
            if got != wanted:
                axes = {"dcp_size": facts.dcp_size, "dcp_interleave": facts.dcp_interleave}
                text = f"{wanted}   (prefill {row}, start {start}, length {length})"
                return (Breach(path, "padded local length is wrong", text, str(got), axes),)
    for row, ranks in enumerate(view.local_lens or ()):
        context = wanted_context(step)
        if context is not None and ranks and row < len(context) and sum(ranks) != context[row]:
            path = context_path(step, "local_context_lens_allranks")
            sums = f"{sum(ranks)} over {len(ranks)} ranks, prefill {row}"
            return (Breach(path, "local lengths do not sum to the context", str(context[row]), sums),)
    return FINE


@clause(
    "MLA308",
    "A chunk ends inside its request's context and inside the block table's row.",
    needs=(CONTEXT, fact("kernel_block_size")),
    incident="vllm#45380 vllm#49427 vllm#27909 vllm#28760",
    example="table width 2, kb=64, start=128, len=65: column 2 of 2",
    help="clamp the last chunk to the context",
)
def check_context_in_table(step: StepContext) -> Found:
    """Check ends of chunks against the table."""
    size = step.known.kernel_block_size
    columns = step.prefill.block_table.shape[1]
    limit = columns * size * step.facts.dcp_size
    done = step.chunk_starts[1]
    if largest(done) <= limit:
        return FINE
    axes = {"max_blocks": columns, "kernel_block_size": size}
    got = f"{largest(done)} for prefill {done.argmax()}"
    path = context_path(step, "chunks")
    return (Breach(path, "a chunk ends behind the block table", f"at most {limit}", got, axes),)
