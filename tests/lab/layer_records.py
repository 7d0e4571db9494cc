"""Records that layers of their own read: legal ones of a mixed batch, written out by hand token by token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mla_contract.contract.step.context import StepContext
from mla_contract.testing.context_records import tensor
from mla_contract.testing.lowering import LoweredKind
from tests.lab.subjects import BLOCK, make_subject

if TYPE_CHECKING:
    from torch import Tensor

WINDOW, RATIO, RING, DECODES = 6, 2, BLOCK, 2


@dataclass
class PlainWindow:
    """Metadata of a sliding-window cache."""

    block_table: Tensor
    slot_mapping: Tensor
    block_size: int
    query_start_loc: Tensor
    seq_lens: Tensor
    token_to_req_indices: Tensor
    is_valid_token: Tensor
    num_decodes: int
    num_prefills: int
    num_decode_tokens: int
    num_prefill_tokens: int
    decode_swa_indices: Tensor
    decode_swa_lens: Tensor
    prefill_swa_indices: Tensor | None
    prefill_swa_lens: Tensor | None
    prefill_seq_lens: Tensor | None
    prefill_seq_lens_cpu: Tensor | None
    prefill_gather_lens: Tensor | None
    prefill_query_lens_cpu: Tensor | None
    prefill_window_size: int


@dataclass
class PlainStateRows:
    """Metadata of a compressed cache whose rows list all states."""

    block_table: Tensor
    slot_mapping: Tensor
    block_size: int
    query_start_loc: Tensor
    req_id_per_token: Tensor
    topk_tokens: int
    c128a_global_decode_topk_indices: Tensor | None
    c128a_decode_topk_lens: Tensor | None
    c128a_prefill_topk_indices: Tensor | None


@dataclass
class PlainRing:
    """Metadata of a compressor that keeps one ring a request."""

    slot_mapping: Tensor
    query_start_loc: Tensor
    token_to_req_indices: Tensor


def _tokens(batch: Any) -> list[tuple[int, int]]:
    """Return request and position of each token."""
    ends, lens = batch.query_start_loc_cpu.tolist(), batch.seq_lens.tolist()
    return [
        (row, length - (end - start) + index)
        for row, (start, end, length) in enumerate(zip(ends[:-1], ends[1:], lens, strict=True))
        for index in range(end - start)
    ]


def _padded(rows: list[list[int]], width: int) -> Tensor:
    """Return rows with -1 behind their entries."""
    return tensor([[*row, *[-1] * (width - len(row))] for row in rows])


def _slot(batch: Any, request: int, entry: int, size: int) -> int:
    """Return the slot of an entry of a request."""
    return int(batch.block_table_tensor[request, entry // size]) * size + entry % size


def _subject(**facts: Any) -> StepContext:
    """Return a legal dense subject with the facts of another cache."""
    made = make_subject(LoweredKind.DENSE)
    return replace(made, facts=replace(made.facts, **facts), declaration=None)


def window() -> StepContext:
    """Return the metadata of a window cache."""
    made = _subject()
    batch, tokens = made.batch, _tokens(made.batch)
    decode_tokens = int(batch.query_start_loc_cpu[DECODES])
    rows = [[_slot(batch, r, p, BLOCK) for p in range(max(0, at - WINDOW + 1), at + 1)] for r, at in tokens]
    lens, slots = tensor([len(row) for row in rows]), _padded(rows, WINDOW)[:, None]
    queries = (batch.query_start_loc_cpu[1:] - batch.query_start_loc_cpu[:-1]).tolist()[DECODES:]
    prefills = batch.seq_lens[DECODES:]
    gathers = [q + min(total - q, WINDOW - 1) for q, total in zip(queries, prefills.tolist(), strict=True)]
    record = PlainWindow(
        batch.block_table_tensor,
        batch.slot_mapping,
        BLOCK,
        batch.query_start_loc,
        batch.seq_lens,
        tensor([request for request, _ in tokens]),
        batch.slot_mapping >= 0,
        DECODES,
        len(queries),
        decode_tokens,
        len(tokens) - decode_tokens,
        slots[:decode_tokens],
        lens[:decode_tokens],
        slots[decode_tokens:],
        lens[decode_tokens:],
        prefills,
        batch.seq_lens_cpu_upper_bound[DECODES:],
        tensor(gathers),
        tensor(queries),
        WINDOW,
    )
    return replace(made, metadata=record)


def state_rows() -> StepContext:
    """Return the metadata of a compressed cache: two tokens a state, and so half as many states a block."""
    made = _subject(compress_ratio=RATIO, kernel_block_size=None)
    batch, tokens = made.batch, _tokens(made.batch)
    decode_tokens, size = int(batch.query_start_loc_cpu[DECODES]), BLOCK // RATIO
    seen = [(request, (at + 1) // RATIO) for request, at in tokens]
    width = max(count for _, count in seen) + 1
    slots = [_slot(batch, r, at // RATIO, size) if (at + 1) % RATIO == 0 else -1 for r, at in tokens]
    record = PlainStateRows(
        batch.block_table_tensor,
        tensor(slots, "int64"),
        BLOCK,
        batch.query_start_loc,
        tensor([request for request, _ in tokens]),
        8,
        _padded([[_slot(batch, r, one, size) for one in range(n)] for r, n in seen[:decode_tokens]], width)[:, None],
        tensor([count for _, count in seen[:decode_tokens]]),
        _padded([list(range(count)) for _, count in seen[decode_tokens:]], width),
    )
    return replace(made, metadata=record)


def ring() -> StepContext:
    """Return the metadata of a compressor's ring."""
    made = _subject()
    batch = made.batch
    tokens = _tokens(batch)
    slots = [int(batch.block_table_tensor[request, 0]) * RING + at % RING for request, at in tokens]
    owners = tensor([request for request, _ in tokens])
    return replace(made, metadata=PlainRing(tensor(slots, "int64"), batch.query_start_loc, owners))
