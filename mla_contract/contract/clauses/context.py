"""Chunked context, in either shape, as far as host values decide it."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause, lacks
from mla_contract.contract.clauses.prefill import prefill_lens
from mla_contract.contract.step.context import Ints, StepContext, largest
from mla_contract.contract.step.views import CHUNK_SHAPE, ChunkView, ContextView


def wanted_context(subject: StepContext) -> Ints | None:
    """Return the cached tokens of each prefill: from the batch's host bounds, else as the record says."""
    if subject.context_lens is not None and subject.num_decodes is not None:
        return subject.context_lens[subject.num_decodes :]
    view = subject.context
    return None if view is None or view.context_lens is None else np.array(view.context_lens)


def planned_context(view: ContextView, num_prefills: int) -> Ints:
    """Return the context tokens of each prefill that all chunks together hold."""
    size = max([num_prefills, *(chunk.first + len(chunk.lens) for chunk in view.chunks)])
    done = np.zeros(size, np.int64)
    for chunk in view.chunks:
        done[chunk.first : chunk.first + len(chunk.lens)] += chunk.sizes
    return done


def starts_of(view: ContextView, num_prefills: int) -> list[list[int]]:
    """Return the first position of each request in each chunk, by adding up what earlier chunks hold."""
    done = [0] * max([num_prefills, *(chunk.first + len(chunk.lens) for chunk in view.chunks)])
    starts = []
    for chunk in view.chunks:
        rows = range(chunk.first, chunk.first + len(chunk.lens))
        starts.append([done[row] for row in rows])
        for row, length in zip(rows, chunk.lens, strict=True):
            done[row] += length
    return starts


def context_path(subject: StepContext, tail: str = "") -> str:
    """Return how reports name a part of the chunked context."""
    return f"{subject.name}.prefill.chunked_context{'.' + tail if tail else ''}"


def _no_local_lens(subject: StepContext, chunk: ChunkView) -> Breach:
    """Return the breach of a chunk without local lengths."""
    path = context_path(subject, chunk.field_path("padded_local_seq_lens"))
    return Breach(path, "no local lengths under DCP", "padded local lengths", "None")


@clause(
    "MLA301",
    "Chunked context is there exactly when a prefill has cached tokens, never by a flag.",
    invariant="X1",
    incident="vllm#14009 vllm#14069",
    example="q=[4], s=[20], chunked prefill off: None",
    help="decide by the context lengths of this batch",
)
def check_context_present(subject: StepContext) -> Found:
    """Check presence of the record against the batch."""
    context = subject.context_lens
    if subject.is_indexer or subject.prefill is None or context is None or subject.num_decodes is None:
        return lacks("metadata.prefill and batch.seq_lens_cpu_upper_bound")
    longest = largest(context[subject.num_decodes :])
    if (longest > 0) == (subject.context is not None):
        return FINE
    wanted = f"a plan for up to {longest} cached tokens" if longest > 0 else "None: no prefill has cached tokens"
    got = "None" if longest > 0 else "a plan"
    return (Breach(context_path(subject), "presence does not follow the cached tokens", wanted, got),)


@clause(
    "MLA302",
    "The chunks of each request partition its cached tokens: no gap, no overlap.",
    invariant="X2",
    incident="vllm#50497 vllm#50613",
    example="ctx=[10], chunks of 4 and 4",
    help="advance each request's start by what the previous chunk took",
)
def check_context_sums(subject: StepContext) -> Found:
    """Check the sums over chunks."""
    view = subject.context
    wanted = None if view is None else wanted_context(subject)
    if view is None or wanted is None:
        return lacks("metadata.prefill.chunked_context")
    done = planned_context(view, len(wanted))
    if len(done) > len(wanted):
        got = f"request {len(done) - 1} of {len(wanted)}"
        return (Breach(context_path(subject, "chunks"), "a chunk names no prefill", f"below {len(wanted)}", got),)
    if not np.array_equal(done, wanted):
        row = int(np.argmax(done != wanted))
        got = f"{done[row]} in chunks, prefill {row}"
        return (
            Breach(context_path(subject, "chunks"), "chunks do not cover the context", f"{wanted[row]} tokens", got),
        )
    if view.context_lens is None or list(view.context_lens) == wanted.tolist():
        return FINE
    path, got = context_path(subject, "context_lens_list"), str(list(view.context_lens)[:4])
    return (Breach(path, "not the cached tokens", str(wanted[:4].tolist()), got),)


@clause(
    "MLA303",
    "Every chunk start, and every length that a request is split at, is aligned to page and interleave.",
    invariant="X3",
    incident="vllm#41229 vllm-ascend#5767",
    example="ws=65536, dcp=8, n=3: chunk 21845, 21845 % 8 = 5",
    help="round to lcm(block size, ranks * interleave) on every platform",
)
def check_context_alignment(subject: StepContext) -> Found:
    """Check starts and split lengths."""
    view, alignment = subject.context, subject.facts.context_alignment()
    if view is None or alignment is None:
        return lacks("metadata.prefill.chunked_context and facts.gather_by_page")
    starts = starts_of(view, subject.num_prefills or 0)
    for chunk, first in zip(view.chunks, starts, strict=True):
        for row, (start, length) in enumerate(zip(first, chunk.lens, strict=True), chunk.first):
            if length and start % alignment:
                got = f"start {start} of prefill {row}, remainder {start % alignment}"
                axes = {"dcp_size": subject.facts.dcp_size, "alignment": alignment}
                wanted = f"a multiple of {alignment}"
                return (Breach(context_path(subject, chunk.path), "a chunk is not aligned", wanted, got, axes),)
    return FINE


@clause(
    "MLA304",
    "A chunk fits the workspace: its tokens, or under DCP its padded local rows times the ranks.",
    invariant="X4",
    incident="vllm#25290 vllm#50613",
    example="ws=8, chunk of 12 rows",
    help="plan chunks by the rows that the gather writes",
)
def check_context_fits(subject: StepContext) -> Found:
    """Check each chunk against the workspace."""
    view, facts = subject.context, subject.facts
    if view is None:
        return lacks("metadata.prefill.chunked_context")
    rows = facts.context_rows if facts.context_rows is not None else int(view.workspace.shape[0])
    budget = rows // facts.dcp_size
    for chunk in view.chunks:
        if facts.dcp_size > 1 and chunk.padded_local is None:
            return (_no_local_lens(subject, chunk),)
        name = "seq_lens" if chunk.padded_local is None else "padded_local_seq_lens"
        used = int(chunk.sizes.sum()) if chunk.padded_local is None else sum(chunk.padded_local)
        if used > budget:
            axes = {"workspace_rows": rows, "dcp_size": facts.dcp_size}
            path = context_path(subject, chunk.field_path(name))
            return (Breach(path, "chunk exceeds the workspace", f"at most {budget}", str(used), axes),)
    return FINE


@clause(
    "MLA305",
    "The totals and maxima of a chunk are those of its lengths.",
    invariant="X5",
    incident="vllm#15492",
    example="lens=[4,3], num_context_tokens=8",
    help="derive totals and maxima from the lengths",
)
def check_context_totals(subject: StepContext) -> Found:
    """Check host totals, host maxima and the length of the owner array."""
    view, found = subject.context, []
    if view is None:
        return lacks("metadata.prefill.chunked_context")
    if subject.facts.dcp_size > 1 and view.shape != CHUNK_SHAPE:
        return lacks("chunk records: the old shape is not read under DCP")
    for chunk in view.chunks:
        total, longest = int(chunk.sizes.sum()), largest(chunk.sizes)
        local = total if chunk.padded_local is None else sum(chunk.padded_local)
        owners = chunk.token_to_seq.shape[0]
        for name, what, wanted, got in (
            ("num_context_tokens", "total of tokens", total, chunk.total),
            ("num_local_context_tokens", "rows of this rank", local, chunk.local_total),
            ("max_seq_len", "longest slice", longest if chunk.padded_local is None else chunk.max_len, chunk.max_len),
        ):
            if wanted != got:
                path = context_path(subject, chunk.field_path(name))
                found.append(Breach(path, f"{what} is wrong", str(wanted), str(got)))
        if owners < total or (chunk.record is not None and owners != total):
            path = context_path(subject, chunk.field_path("token_to_seq"))
            found.append(Breach(path, "owners differ from tokens", str(total), str(owners)))
    return tuple(found)


@clause(
    "MLA306",
    "A request without tokens in a chunk is left out of it, or the chunk says so; those without context are listed.",
    invariant="X6",
    incident="vllm#27491 vllm#15492 vllm#49294 vllm#49334",
    example="ctx=[4,12], chunk 4: cells [[4,4],[0,4],[0,4]]",
    help="the consumer gives empty cells output 0 and LSE -inf; tell it which they are",
)
def check_empty_cells(subject: StepContext) -> Found:
    """Check how empty cells are declared."""
    view = subject.context
    if view is None:
        return lacks("metadata.prefill.chunked_context")
    if view.shape != CHUNK_SHAPE:
        for index, (chunk, flag) in enumerate(zip(view.chunks, view.flagged_empty or (), strict=True)):
            if flag != (0 in chunk.lens):
                path = context_path(subject, f"has_empty_context[{index}]")
                return (Breach(path, "empty cells are not declared", str(0 in chunk.lens), str(flag)),)
        return FINE
    for chunk in view.chunks:
        if 0 in chunk.lens:
            path = context_path(subject, f"{chunk.path}.seq_lens")
            return (
                Breach(path, "a chunk holds a request without tokens", "positive lengths", str(list(chunk.lens[:4]))),
            )
    lens, context = prefill_lens(subject), wanted_context(subject)
    if lens is None or context is None:
        return lacks("batch.query_start_loc_cpu")
    if not view.empty_slices and np.count_nonzero(context) == len(context):
        return FINE
    ends = np.cumsum(lens).tolist()
    wanted = [
        (end - length, end) for end, length, own in zip(ends, lens.tolist(), context.tolist(), strict=True) if own == 0
    ]
    got = [(cut.start, cut.stop) for cut in view.empty_slices or ()]
    if got == wanted:
        return FINE
    path = context_path(subject, "empty_token_slices")
    return (Breach(path, "not the prefills without context", str(wanted[:4]), str(got[:4])),)


@clause(
    "MLA307",
    "Under DCP the ranks' true local lengths sum to the context, and padded lengths follow from start and length.",
    invariant="X7",
    incident="vllm#28476 vllm#28411 vllm#28514",
    example="dcp 2, interleave 1, ctx=[10], chunk 4: local 2,2,1 and not 5",
    help="derive a chunk's local rows from what remains in that chunk",
)
def check_local_lens(subject: StepContext) -> Found:
    """Check the local lengths of each chunk."""
    view, facts = subject.context, subject.facts
    if view is None or facts.dcp_size <= 1:
        return lacks("metadata.prefill.chunked_context and facts.dcp_size")
    if view.shape != CHUNK_SHAPE:
        return lacks("chunk records: the old shape is not read under DCP")
    starts = starts_of(view, subject.num_prefills or 0)
    for chunk, first in zip(view.chunks, starts, strict=True):
        if chunk.padded_local is None:
            return (_no_local_lens(subject, chunk),)
        path = context_path(subject, chunk.field_path("padded_local_seq_lens"))
        for row, (start, length, got) in enumerate(
            zip(first, chunk.lens, chunk.padded_local, strict=True), chunk.first
        ):
            wanted = facts.padded_rows(start + length) - facts.padded_rows(start)
            if got != wanted:
                axes = {"dcp_size": facts.dcp_size, "dcp_interleave": facts.dcp_interleave}
                text = f"{wanted}   (prefill {row}, start {start}, length {length})"
                return (Breach(path, "padded local length is wrong", text, str(got), axes),)
    for row, ranks in enumerate(view.local_lens or ()):
        context = wanted_context(subject)
        if context is not None and ranks and row < len(context) and sum(ranks) != context[row]:
            path = context_path(subject, "local_context_lens_allranks")
            sums = f"{sum(ranks)} over {len(ranks)} ranks, prefill {row}"
            return (Breach(path, "local lengths do not sum to the context", str(context[row]), sums),)
    return FINE


@clause(
    "MLA308",
    "A chunk ends inside its request's context and inside the block table's row.",
    invariant="X8",
    incident="vllm#45380 vllm#49427 vllm#27909 vllm#28760",
    example="table width 2, kb=64, start=128, len=65: column 2 of 2",
    help="clamp the last chunk to the context",
)
def check_context_in_table(subject: StepContext) -> Found:
    """Check ends of chunks against the table."""
    view, size = subject.context, subject.facts.kernel_block_size
    if view is None or size is None:
        return lacks("metadata.prefill.chunked_context and facts.kernel_block_size")
    columns = subject.prefill.block_table.shape[1]
    limit = columns * size * subject.facts.dcp_size
    done = planned_context(view, subject.num_prefills or 0)
    if largest(done) <= limit:
        return FINE
    axes = {"max_blocks": columns, "kernel_block_size": size}
    got = f"{largest(done)} for prefill {done.argmax()}"
    path = context_path(subject, "chunks")
    return (Breach(path, "a chunk ends behind the block table", f"at most {limit}", got, axes),)
