"""The usual step, proven at once: few vector operations that decide many clauses of the values level together.

Slots are compared run by run: inside one block of one request they count up, so only the first token of each run needs
the block table, and all others only their predecessor. Blocks that are pairwise distinct make the slots distinct.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from mla_contract.contract.clauses.usual import Step, is_ramp
from mla_contract.contract.step.facts import Facts
from mla_contract.contract.step.host import host_all, on_host

PROVEN_VALUES = frozenset(f"MLA{number}" for number in (*range(211, 215), 221, *range(223, 227), 253, 263, 264))
"""Clauses that hold wherever ``prove_values`` says yes."""

_INT32_LIMIT = 2**31


def prove_values(step: Step, metadata: Any, batch: Any, facts: Facts) -> bool:
    """Return True only if every clause of ``PROVEN_VALUES`` holds for a usual step.

    Sync: reads device memory
    """
    sharded = facts.dcp_size > 1 or facts.pcp_size > 1
    if sharded or facts.device_lens_differ or facts.dummy or facts.kernel_block_size is None:
        return False
    try:
        owners = getattr(metadata, "req_id_per_token", None)
        arrays = [batch.query_start_loc, batch.seq_lens, batch.block_table_tensor, batch.slot_mapping]
        if owners is not None:
            arrays.append(owners)
        start_loc, lens, blocks, slots, *ids = on_host(arrays)
        table = blocks.numpy()
        return (
            start_loc.equal(batch.query_start_loc_cpu)
            and lens.equal(batch.seq_lens_cpu_upper_bound)
            and step.longest <= batch.max_seq_len
            and _prove_blocks(step, table, facts)
            and _prove_slots(step, table, slots.numpy(), facts)
            and (not ids or _prove_owners(step, metadata, ids[0].numpy()))
            and _prove_prefill(step, batch, getattr(metadata, "prefill", None), table)
        )
    except Exception:  # noqa: BLE001 - the records are foreign; the clauses decide one by one
        return False


def same(own: Any, wanted: Any) -> bool:
    """Return whether two arrays have one element type and the same elements."""
    return bool(own.tobytes() == wanted.tobytes()) and own.dtype == wanted.dtype and own.shape == wanted.shape


def _prove_blocks(step: Step, table: Any, facts: Facts) -> bool:
    """Prove that every column that the longest request reaches holds a block; tables are far wider."""
    columns = -(-step.longest // ((facts.kernel_block_size or 1) * facts.dcp_size))
    live = table[:, :columns].ravel()
    if not live.size or live.item(live.argmin()) < 0:
        return False
    return facts.num_blocks is None or bool(live.item(live.argmax()) < facts.num_blocks)


def _prove_slots(step: Step, table: Any, slots: Any, facts: Facts) -> bool:
    """Prove that slots follow the table, are distinct, and -1 behind the batch."""
    size, tokens = facts.kernel_block_size or 1, step.num_tokens
    span = facts.slot_span or size
    if span < size or len(slots) < tokens:
        return False
    if len(slots) > tokens:
        if np.count_nonzero(slots[tokens:] != -1):
            return False
        slots = slots[:tokens]
    narrow = facts.row_stride is not None and facts.wide_addresses is False
    if narrow and slots.item(slots.argmax()) * facts.row_stride >= _INT32_LIMIT:
        return False
    cells, divide, by, unit = _constants(step.num_reqs, table.shape[1], size)
    if step.lens is None or step.context is None:
        place = cells + step.upper
        column = divide(place, by)
        blocks = table.take(column)
        wanted = blocks - column
        wanted *= unit
        wanted += place
        if span != size:
            wanted += blocks * np.int64(span - size)
        return same(slots, wanted) and _distinct(blocks)
    first = divide(step.context, by)
    counts = divide(step.upper - 1, by) - first + 1
    row = np.arange(step.num_reqs).repeat(counts)
    ends = np.add.accumulate(counts)
    column = np.arange(len(row)) - (ends - counts - first).take(row)
    into = column * unit - step.context.take(row)
    before = np.minimum(into, 0)
    blocks = table.ravel().take(row * table.shape[1] + column)
    begin = step.start_loc.take(row) + (into - before)
    breaks = slots[1:] != slots[:-1] + 1
    return (
        same(slots.take(begin), blocks * np.int64(span) - before)
        and bool(np.count_nonzero(breaks) == np.count_nonzero(breaks.take(begin[1:] - 1)))
        and _distinct(blocks)
    )


@lru_cache(maxsize=64)
def _constants(rows: int, columns: int, size: int) -> tuple[Any, ...]:
    """Return what depends on a table's shape alone, as arrays: NumPy takes longer to convert integers.

    Returns:
        For each row of cells in one long array, the cell before its first: a length away from its last; the operation
        and the operand that make columns of cells; the block size.
    """
    cells = np.arange(rows, dtype=np.int64) * (columns * size) - 1
    cells.setflags(write=False)
    unit = np.array(size)
    if size & (size - 1):
        return cells, np.floor_divide, unit, unit
    return cells, np.right_shift, np.array(size.bit_length() - 1), unit


def _distinct(blocks: Any) -> bool:
    """Return whether no block occurs twice; puts them in order."""
    blocks.sort()
    return 1 not in (blocks[1:] == blocks[:-1]).tobytes()


def _prove_owners(step: Step, metadata: Any, ids: Any) -> bool:
    """Prove the request of each token, or of each decode token where the array is cut to those."""
    reqs, tokens = step.num_reqs, step.num_tokens
    if len(ids) != tokens:
        reqs, tokens = step.num_decodes, metadata.num_decode_tokens
    if len(ids) != tokens or not reqs:
        return False
    return bool(is_ramp(ids, tokens)) if step.lens is None else repeats(ids, step.start_loc[:reqs])


def repeats(ids: Any, starts: Any) -> bool:
    """Return whether int32 ``ids`` are 0, 1, 2, ... from rising ``starts`` on: right there, changing nowhere else."""
    changes = ids[1:] != ids[:-1]
    inside = np.count_nonzero(changes) - np.count_nonzero(changes.take(starts[1:] - 1))
    return not inside and is_ramp(ids.take(starts), len(starts))


def _prove_prefill(step: Step, batch: Any, prefill: Any, table: Any) -> bool:
    """Prove offsets and block table of the prefill record, where there is one."""
    if prefill is None:
        return True
    decodes, own, whole = step.num_decodes, prefill.block_table, batch.block_table_tensor
    if not same(host_all(prefill.query_start_loc)[0], step.start_loc[decodes:] - step.start_loc[decodes]):
        return False
    wanted = table[decodes:]
    if tuple(own.shape) != wanted.shape:
        return False
    at = whole.data_ptr() + decodes * whole.stride(0) * whole.element_size()
    # A part of the batch's table needs no reading, which on a device would be a copy of all of it.
    place = own.device, own.dtype, own.stride(), own.data_ptr()
    if place == (whole.device, whole.dtype, whole.stride(), at):
        return True
    return not np.count_nonzero(host_all(own)[0] != wanted)
