"""Chunked context of a usual step, proven at once, in the shape of chunk records and without context parallelism."""

from __future__ import annotations

from typing import Any

import numpy as np

from mla_contract.contract.clauses.usual import Step
from mla_contract.contract.clauses.usual_values import repeats, same
from mla_contract.contract.step.facts import Facts
from mla_contract.contract.step.host import host_all, host_copy

PROVEN_CONTEXT = frozenset(
    {"MLA301", "MLA302", "MLA304", "MLA305", "MLA306", "MLA308", "MLA309", "MLA312", "MLA313", "MLA314"}
)
"""Clauses that hold wherever ``prove_context`` says yes."""

PROVEN_CONTEXT_VALUES = frozenset({"MLA321", "MLA322", "MLA323", "MLA324", "MLA325"})
"""Clauses that hold besides wherever ``prove_context_values`` says yes."""


def prove_context(step: Step, facts: Facts, prefill: Any) -> bool:
    """Return True only if every clause of ``PROVEN_CONTEXT`` holds: each prefill has context, and chunks cover it.

    Sync: none
    """
    record = prefill.chunked_context
    if facts.dcp_size > 1 or step.fewest <= 0:
        return False
    try:
        wanted = (step.upper - 1 if step.context is None else step.context)[step.num_decodes :]
        queries = np.ones(len(wanted), np.int32) if step.lens is None else step.lens[step.num_decodes :]
        offsets = (step.start_loc[step.num_decodes :] - step.start_loc[step.num_decodes]).tolist()
        rows = facts.context_rows if facts.context_rows is not None else record.workspace.shape[0]
        done = np.zeros(len(wanted), np.int64)
        for index, chunk in enumerate(record.chunks):
            lens, cut = host_copy(chunk.seq_lens), chunk.request_slice
            first, last = cut.start, cut.stop
            if lens is None or lens.ndim != 1 or not 0 <= first < last <= len(done) or len(lens) != last - first:
                return False
            if not _totals_fit(chunk, lens, rows) or not _tokens_fit(chunk, offsets, first, last):
                return False
            if chunk.index != index or chunk.is_continuation != (done.item(first) > 0):
                return False
            own = queries[first:last]
            if chunk.max_query_len != own.item(own.argmax()):
                return False
            done[first:last] += lens
        return (
            not record.empty_token_slices
            and done.tolist() == wanted.tolist() == list(record.context_lens_list)
            and (facts.kernel_block_size is None or _inside_table(done, prefill, facts.kernel_block_size))
        )
    except Exception:  # noqa: BLE001 - the records are foreign; the clauses decide one by one
        return False


def _totals_fit(chunk: Any, lens: Any, rows: int) -> bool:
    """Return whether no request of a chunk is without tokens, and its totals are those of its lengths and fit."""
    total = int(np.add.reduce(lens))
    return bool(
        lens.item(lens.argmin()) > 0
        and total == chunk.num_context_tokens == chunk.num_local_context_tokens == chunk.token_to_seq.shape[0]
        and total <= rows
        and chunk.max_seq_len == lens.item(lens.argmax())
        and chunk.padded_local_seq_lens is None
        and chunk.local_starts is None
        and not chunk.local_context_lens_allranks
    )


def _tokens_fit(chunk: Any, offsets: list[int], first: int, last: int) -> bool:
    """Return whether a chunk's query tokens are those of its requests."""
    cut = chunk.token_slice
    return bool(
        cut.start == offsets[first]
        and cut.stop == offsets[last]
        and chunk.continuation_token_end == offsets[first + 1]
        and chunk.all_rows_active is True
    )


def _inside_table(done: Any, prefill: Any, size: int) -> bool:
    """Return whether the context ends inside the rows of the block table."""
    return bool(done.item(done.argmax()) <= prefill.block_table.shape[1] * size)


def prove_context_values(step: Step, prefill: Any) -> bool:
    """Return True only if every clause of ``PROVEN_CONTEXT_VALUES`` holds where ``prove_context`` said yes.

    Sync: reads device memory
    """
    try:
        base = step.start_loc[step.num_decodes :]
        done = np.zeros(len(base) - 1, np.int32)
        for chunk in prefill.chunked_context.chunks:
            first, last = chunk.request_slice.start, chunk.request_slice.stop
            starts, sums, owners, offsets = host_all(
                chunk.starts, chunk.cu_seq_lens, chunk.token_to_seq, chunk.query_start_loc
            )
            lens, own = chunk.seq_lens.numpy(), base[first : last + 1]
            if not same(starts, done[first:last]) or sums.item(0) != 0 or not same(sums[1:] - sums[:-1], lens):
                return False
            if not same(offsets, own - own[0]) or not repeats(owners, sums[:-1]):
                return False
            done[first:last] += lens
        return same(host_all(prefill.chunked_context.context_lens)[0], done)
    except Exception:  # noqa: BLE001 - the records are foreign; the clauses decide one by one
        return False
