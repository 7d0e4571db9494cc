"""Compressed caches, where a slot holds the state of several tokens: rows of states, their slots, and owners."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import BATCH, WHOLE_CACHE, WHOLE_QUERIES, Need, fact
from mla_contract.contract.clauses.owners import equal
from mla_contract.contract.step.context import Ints, StepContext
from mla_contract.contract.step.host import host_ints

COMPRESSED = Need("compressed metadata", lambda step: step.layer_kind == "compressed")
RING = Need(
    "ring compressor metadata",
    lambda step: step.layer_kind == "compressor" and not hasattr(step.metadata, "block_table"),
)
STATES = Need("facts.compress_ratio", lambda step: step.facts.compress_ratio > 1, settled=True)
STATE_DECODES = Need(
    "compressed metadata.c128a_decode_topk_lens",
    lambda step: getattr(step.metadata, "c128a_decode_topk_lens", None) is not None,
    of=COMPRESSED,
)
STATE_PREFILLS = Need(
    "compressed metadata.c128a_prefill_topk_indices",
    lambda step: getattr(step.metadata, "c128a_prefill_topk_indices", None) is not None,
    of=COMPRESSED,
)
LAYER_RECORD = Need("metadata of a layer of its own", lambda step: step.layer_kind is not None)


def slots_of(table: Ints, owners: Ints, starts: Ints, counts: Ints, size: int, width: int) -> Ints:
    """Return rows of slots: of consecutive entries of each row's request, -1 behind them.

    Args:
        table: Blocks of each request.
        owners: Request of each row.
        starts: First entry of each row.
        counts: Entries of each row.
        size: Entries of a block.
        width: Columns.
    """
    column = np.arange(width)
    entries = starts[:, None] + column
    live = column < counts[:, None]
    blocks = table[owners[:, None], np.where(live, entries // size, 0)].astype(np.int64)
    return np.where(live, blocks * size + entries % size, -1)


def first_wrong(path: str, message: str, own: NDArray[Any], wanted: NDArray[Any]) -> Found:
    """Return the breach at the first entry that differs."""
    if equal(own, wanted):
        return FINE
    if own.shape != wanted.shape:
        return (Breach(path, message, f"shape {wanted.shape}", f"shape {own.shape}"),)
    place = tuple(int(index[0]) for index in np.nonzero(own != wanted))
    return (Breach(path, message, f"{wanted[place]} at {list(place)}", str(own[place])),)


def _stored(step: StepContext, first: int, rows: int) -> NDArray[np.bool_]:
    """Return which tokens from ``first`` on are stored by the batch."""
    return step.slots[first : first + rows] >= 0


@clause(
    "MLA431",
    "A decode token's row of states lists all that it sees, by its request's blocks in states; unstored ones see none.",
    level="values",
    needs=(BATCH, STATE_DECODES, STATES, WHOLE_QUERIES, WHOLE_CACHE),
    incident="vllm:models/deepseek_v4/nvidia/flashmla.py",
    example="ratio 128, position 255: 2 states, block_size // 128 of them a block",
    help="(position + 1) // ratio states; divide the block size by the ratio as well",
)
def check_state_decodes(step: StepContext) -> Found:
    """Check slots and lengths of a decode token's states; the slots of a token that is not stored are not read."""
    record, ratio = step.metadata, step.facts.compress_ratio
    lens = host_ints(record.c128a_decode_topk_lens)
    own = host_ints(record.c128a_global_decode_topk_indices).reshape(len(lens), -1)
    owners, places = step.owners[: len(lens)], step.places[: len(lens)]
    stored = _stored(step, 0, len(owners))
    counts = np.where(stored, (places + 1) // ratio, 0)
    wanted = np.concatenate([counts, np.zeros(len(lens) - len(counts), np.int64)])
    found = first_wrong(f"{step.name}.c128a_decode_topk_lens", "not the states that the token sees", lens, wanted)
    if found:
        return found
    size = record.block_size // ratio
    slots = slots_of(step.table, owners, np.zeros_like(counts), counts, size, own.shape[1])
    path = f"{step.name}.c128a_global_decode_topk_indices"
    return first_wrong(path, "not the slots of the states", own[: len(owners)][stored], slots[stored])


@clause(
    "MLA432",
    "A prefill token's row lists the request-local states that it sees: 0, 1, 2, ..., and -1 behind them.",
    level="values",
    needs=(BATCH, STATE_PREFILLS, STATES, WHOLE_QUERIES),
    incident="vllm:models/deepseek_v4/nvidia/flashmla.py",
    example="ratio 128, position 255: [0, 1, -1, ...]",
    help="(position + 1) // ratio states, in states and not in tokens",
)
def check_state_prefills(step: StepContext) -> Found:
    """Check the rows of prefill tokens, which follow those of the decodes."""
    record = step.metadata
    own = host_ints(record.c128a_prefill_topk_indices)
    decodes = getattr(record, "c128a_decode_topk_lens", None)
    first = 0 if decodes is None else len(decodes)
    counts = (step.places[first : first + len(own)] + 1) // step.facts.compress_ratio
    column = np.arange(own.shape[1])
    wanted = np.where(column < counts[:, None], column, -1)
    path = f"{step.name}.c128a_prefill_topk_indices"
    return first_wrong(path, "not the states that the token sees", own[: len(counts)], wanted)


@clause(
    "MLA433",
    "A state is stored with the last of its tokens, in a slot counted in states; all other tokens have slot -1.",
    level="values",
    needs=(BATCH, COMPRESSED, STATES, WHOLE_QUERIES, WHOLE_CACHE),
    incident="vllm#51252",
    example="ratio 4, block 5 of 64 tokens: position 7 has slot 5 * 16 + 1",
    help="(position + 1) % ratio == 0 stores a state; divide position and block size by the ratio",
)
def check_state_slots(step: StepContext) -> Found:
    """Check the slots of a compressed cache."""
    record, ratio = step.metadata, step.facts.compress_ratio
    owners, places, size = step.owners, step.places, record.block_size // ratio
    ends = ((places + 1) % ratio == 0) & _stored(step, 0, len(owners))
    wanted = slots_of(step.table, owners, places // ratio, ends.astype(np.int64), size, 1)[:, 0]
    own = host_ints(record.slot_mapping)[: len(owners)]
    return first_wrong(f"{step.name}.slot_mapping", "not the slot of the token's state", own, wanted)


@clause(
    "MLA434",
    "The owner of a token is the request whose query holds it.",
    level="values",
    needs=(BATCH, LAYER_RECORD, WHOLE_QUERIES),
    incident="vllm:models/deepseek_v4/compressor.py",
    example="q=[2,1]: owners [0,0,1]",
    help="repeat each request's row by its query length on the device",
)
def check_layer_owners(step: StepContext) -> Found:
    """Check the owners of tokens that have a query; a padding token may own any row."""
    for name in ("token_to_req_indices", "req_id_per_token"):
        array = getattr(step.metadata, name, None)
        if array is not None:
            own = host_ints(array)[: len(step.owners)]
            found = first_wrong(f"{step.name}.{name}", "not the token's request", own, step.owners)
            if found:
                return found
    return FINE


@clause(
    "MLA435",
    "A ring stores a token at its position modulo the ring's rows, in its request's one block; -1 without a block.",
    level="values",
    needs=(BATCH, RING, fact("kernel_block_size"), WHOLE_QUERIES, WHOLE_CACHE),
    incident="vllm:models/deepseek_v41/compressor.py",
    example="8 rows, block 5, position 9: slot 5 * 8 + 1",
    help="block * rows + position % rows; the null block stores nothing",
)
def check_ring_slots(step: StepContext) -> Found:
    """Check the slots of a compressor's ring."""
    rows, blocks = step.known.kernel_block_size, step.table[step.owners, 0].astype(np.int64)
    wanted = np.where(blocks != 0, blocks * rows + step.places % rows, -1)
    own = host_ints(step.metadata.slot_mapping)[: len(wanted)]
    return first_wrong(f"{step.name}.slot_mapping", "not the token's row of the ring", own, wanted)
