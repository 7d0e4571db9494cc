"""The rows of a sliding-window cache: how many keys a token sees, and in which slots they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import BATCH, WHOLE_CACHE, WHOLE_QUERIES, Need
from mla_contract.contract.clauses.owners import equal
from mla_contract.contract.clauses.state_rows import first_wrong, slots_of
from mla_contract.contract.step.context import Ints, StepContext
from mla_contract.contract.step.host import host_ints

WINDOW = Need("window metadata", lambda step: step.is_window)
CAUSAL_WINDOW = Need(
    "a causal window over text: drafts of blocks and images see keys behind a token",
    lambda step: (
        getattr(step.batch, "causal", True) is not False
        and getattr(step.metadata, "prefill_left_visible", None) is None
    ),
    of=WINDOW,
)
WINDOW_PREFILLS = Need(
    "window metadata.prefill_gather_lens",
    lambda step: getattr(step.metadata, "prefill_gather_lens", None) is not None,
    of=WINDOW,
)


def _replay_start(step: StepContext, requests: int) -> Ints:
    """Return the first position of each request whose window keys are cached; 0 where the record says nothing."""
    starts = getattr(step.metadata, "replay_start", None)
    return np.zeros(requests, np.int64) if starts is None else host_ints(starts)[:requests].astype(np.int64)


def _parts(step: StepContext) -> Iterator[tuple[str, Any, Any, int, int]]:
    """Yield of the decode and the prefill rows: name, slots, lengths, first token, window."""
    record = step.metadata
    decodes, width = record.num_decode_tokens, record.decode_swa_indices.shape[-1]
    yield "decode", record.decode_swa_indices, record.decode_swa_lens, 0, getattr(record, "decode_swa_width", width)
    slots, lens = getattr(record, "prefill_swa_indices", None), getattr(record, "prefill_swa_lens", None)
    if slots is not None and lens is not None:
        yield "prefill", slots, lens, decodes, record.prefill_window_size


def _seen(step: StepContext, first: int, rows: int, window: int) -> tuple[Ints, Ints, Ints]:
    """Return of tokens from ``first`` on: owner, first visible position, number of keys; no keys where not stored."""
    owners, places = step.owners[first : first + rows], step.places[first : first + rows]
    starts = np.maximum(np.maximum(places - window + 1, 0), _replay_start(step, len(step.seq_lens))[owners])
    counts = np.where(step.slots[first : first + len(owners)] >= 0, places + 1 - starts, 0)
    return owners, starts, counts


@clause(
    "MLA421",
    "A token sees the last keys of its window and its own; a token that is not stored sees none.",
    level="values",
    needs=(BATCH, CAUSAL_WINDOW, WHOLE_QUERIES),
    incident="vllm:v1/attention/backends/mla/sparse_swa.py",
    example="window 4, position 9: 4 keys, not 10",
    help="min(position + 1, window) keys, from replay_start on; 0 where the slot is -1, in padding rows too",
)
def check_window_lens(step: StepContext) -> Found:
    """Check the lengths of window rows."""
    for part, _, lens, first, window in _parts(step):
        own = host_ints(lens)
        counts = _seen(step, first, len(own), window)[2]
        wanted = np.concatenate([counts, np.zeros(len(own) - len(counts), np.int64)])
        if not equal(own, wanted):
            row = int(np.flatnonzero(own != wanted)[0])
            path = f"{step.name}.{part}_swa_lens"
            return (Breach(path, "not the keys of the window", f"{wanted[row]} at row {row}", str(own[row])),)
    return FINE


@clause(
    "MLA422",
    "A window row holds the slots of consecutive positions by the request's blocks, and -1 behind them.",
    level="values",
    needs=(BATCH, CAUSAL_WINDOW, WHOLE_QUERIES, WHOLE_CACHE),
    incident="vllm:v1/attention/backends/mla/sparse_swa.py",
    example="block 5 of 64, positions 8 and 9: slots 328 and 329",
    help="look up block_table by the row's own request, with the window cache's block size",
)
def check_window_slots(step: StepContext) -> Found:
    """Check the slots of window rows; a row's tail is compared as well, for a kernel may read whole tiles."""
    for part, slots, lens, first, window in _parts(step):
        own = host_ints(slots).reshape(len(lens), -1)
        owners, starts, counts = _seen(step, first, len(own), window)
        wanted = slots_of(step.table, owners, starts, counts, step.metadata.block_size, own.shape[1])
        path = f"{step.name}.{part}_swa_indices"
        found = first_wrong(path, "not the slots of the window", own[: len(owners)], wanted)
        if found:
            return found
    return FINE


@clause(
    "MLA423",
    "A token is flagged as stored exactly where its slot is not -1.",
    level="values",
    needs=(WINDOW,),
    incident="vllm:v1/attention/backends/mla/sparse_swa.py",
    example="slots [7, -1], flags [True, True]",
    help="compare slot_mapping with 0 after it is final; padding tokens differ from the captured batch's",
)
def check_window_flags(step: StepContext) -> Found:
    """Check ``is_valid_token`` by the record's own slots."""
    own, wanted = host_ints(step.metadata.is_valid_token) != 0, host_ints(step.metadata.slot_mapping) >= 0
    if equal(own, wanted):
        return FINE
    row = int(np.flatnonzero(own != wanted)[0])
    path = f"{step.name}.is_valid_token"
    return (Breach(path, "contradicts the token's slot", f"{wanted[row]} at entry {row}", str(own[row])),)


@clause(
    "MLA424",
    "A prefill gathers its queries and at most window - 1 tokens before them.",
    level="values",
    needs=(BATCH, WINDOW_PREFILLS, WHOLE_QUERIES),
    incident="vllm:v1/attention/backends/mla/sparse_swa.py",
    example="window 128, ctx 1000, q=5: 132 keys, not 1005",
    help="query + min(context, window - 1); the workspace is sized by it",
)
def check_window_gathers(step: StepContext) -> Found:
    """Check the keys to gather, the lengths and the host query lengths of the prefills."""
    record, first = step.metadata, step.metadata.num_decodes
    queries, lens = step.device_query_lens[first:], step.seq_lens[first:]
    behind = np.maximum(lens - queries - _replay_start(step, len(step.seq_lens))[first:], 0)
    found = []
    for name, wanted in (
        ("prefill_gather_lens", queries + np.minimum(behind, record.prefill_window_size - 1)),
        ("prefill_seq_lens", lens),
        ("prefill_query_lens_cpu", step.query_lens[first:]),
    ):
        own = host_ints(getattr(record, name))
        if not equal(own, wanted):
            row = int(np.flatnonzero(own != wanted)[0]) if own.shape == wanted.shape else 0
            path = f"{step.name}.{name}"
            found.append(Breach(path, "not that of the prefill", f"{wanted[row]} at entry {row}", str(own[row])))
    return tuple(found)
