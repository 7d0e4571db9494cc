"""Slots and block tables: which cache row a token is written to, and which blocks a request owns."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import BATCH, DCP, Need, fact
from mla_contract.contract.step.context import Ints, StepContext, largest, smallest

OWN_BLOCKS = Need(
    "blocks of its own for each request: one runner's warm-up shares them under context parallelism",
    lambda step: step.facts.dcp_size <= 1,
    settled=True,
)
STORED_TOKENS = Need(
    "stored tokens: dummy steps and captures have none",
    lambda step: not step.facts.dummy and not step.facts.capturing,
    settled=True,
)

_INT32_LIMIT = 2**31


def _divided(values: Ints, size: int) -> tuple[Ints, Ints]:
    """Return quotient and remainder; by shifts where the size is a power of two."""
    if size & (size - 1) == 0:
        return values >> (size.bit_length() - 1), values & (size - 1)
    return values // size, values % size


@clause(
    "MLA221",
    "Slots are -1 or pairwise distinct.",
    level="values",
    needs=(BATCH, STORED_TOKENS, OWN_BLOCKS),
    incident="vllm#54359",
    example="640-token block, page 128: 4096 entries, 864 slots",
    help="compute slots at the kernel's block size; -1 where nothing is stored",
)
def check_slots_distinct(step: StepContext) -> Found:
    """Check that no two tokens are written to one place; runs of consecutive slots are compared, not single ones."""
    slots = step.slots
    path = f"{step.batch_name}.slot_mapping"
    lowest = smallest(slots)
    if lowest < -1:
        return (Breach(path, "slot below -1", "-1 or a slot", f"{lowest} at token {slots.argmin()}"),)
    # Dummy steps write to the null block, where tokens may meet: nobody reads it.
    first = step.facts.slot_span or step.facts.kernel_block_size or 0
    stored = slots if lowest >= first else slots[slots >= first]
    if not len(stored):
        return FINE
    begins = np.ones(len(stored) + 1, np.bool_)
    begins[1:-1] = stored[1:] != stored[:-1] + 1
    starts, lasts = stored[begins[:-1]], stored[begins[1:]]
    starts.sort()
    lasts.sort()
    if not np.count_nonzero(starts[1:] <= lasts[:-1]):
        return FINE
    stored = np.sort(stored)
    twice = np.flatnonzero(stored[1:] == stored[:-1])
    got = f"{stored[twice[0]]} twice; {len(stored)} tokens in {len(np.unique(stored))} slots"
    return (Breach(path, "two tokens share a slot", "pairwise distinct slots", got),)


@clause(
    "MLA222",
    "Under decode context parallelism exactly the tokens that this rank owns have a slot.",
    level="values",
    needs=(BATCH, DCP, STORED_TOKENS),
    incident="vllm#50095",
    example="dcp 2, interleave 1, rank 0: token at position 1 has a slot",
    help="a negative slot says who stores a token, not whether it has a query",
)
def check_slot_owner(step: StepContext) -> Found:
    """Check ownership of every live token."""
    facts = step.facts
    owner, position = step.owners, step.places
    if (step.slots < 0).all():
        return FINE  # the batch of a capture or an idle step: nothing of it is stored on any rank
    live = step.seq_lens[owner] > 0
    mine = position // facts.dcp_interleave % facts.dcp_size == facts.dcp_rank
    wrong = live & (mine != (step.slots[: len(owner)] >= 0))
    if not wrong.any():
        return FINE
    token = int(np.argmax(wrong))
    wanted = "a slot" if mine[token] else "-1: another rank stores it"
    got = f"{step.slots[token]} at token {token}, position {position[token]}"
    return (Breach(f"{step.batch_name}.slot_mapping", "slot does not follow ownership", wanted, got),)


@clause(
    "MLA223",
    "Live columns of the block table hold blocks of the cache.",
    level="values",
    needs=(BATCH, fact("kernel_block_size")),
    incident="vllm#45380",
    example="s=[65], page 64, row [3,-1]",
    help="fill the columns of every live block",
)
def check_live_blocks(step: StepContext) -> Found:
    """Check the ids in [0, ceil(s / block size))."""
    size = step.known.kernel_block_size
    most = step.facts.num_blocks
    columns = -(-step.seq_lens // (size * step.facts.dcp_size))
    # An engine's table is as wide as its longest possible request: what no request of the batch reaches is not read.
    table = step.table[:, : largest(columns)]
    if table.size and table.min() >= 0 and (most is None or table.max() < most):
        return FINE
    live = np.arange(table.shape[1]) < columns[:, None]
    wrong = live & ((table < 0) | (table >= most if most is not None else False))
    if not wrong.any():
        return FINE
    row, column = (int(index[0]) for index in np.nonzero(wrong))
    wanted = f"a block in [0, {most})" if most is not None else "a block"
    got = f"{table[row, column]} at request {row}, column {column}"
    return (Breach(f"{step.batch_name}.block_table_tensor", "a live column holds no block", wanted, got),)


@clause(
    "MLA224",
    "Rows of padding requests hold the null block.",
    level="values",
    needs=(BATCH,),
    incident="vllm#39277 ATOM#2044",
    example="s=[9,0], row 1 = [7]",
    help="clear the rows behind the last request at every step",
)
def check_padding_blocks(step: StepContext) -> Found:
    """Check the first column of padding rows."""
    if smallest(step.device_query_lens) > 0 or step.facts.next_n not in (None, 1):
        return FINE  # a draft model's step keeps the rows of the step before, which no token of it reads
    padding = np.flatnonzero((step.device_query_lens == 0) & (step.seq_lens == 0))
    if not len(padding) or not step.batch.block_table_tensor.shape[1]:
        return FINE
    first = step.table[:, 0][padding]
    if first.max() <= 0:
        return FINE
    row = int(padding[np.argmax(first > 0)])
    got = f"{first.max()} at request {row}"
    path = f"{step.batch_name}.block_table_tensor"
    return (Breach(path, "a padding request points at a block in use", "the null block, 0 or -1", got),)


@clause(
    "MLA225",
    "A slot is its block's id times the span of a block, plus the offset in the block.",
    level="values",
    needs=(BATCH, fact("kernel_block_size")),
    incident="vllm#51031",
    example="block 128, kernel block 64, interleave 128, dcp 4, position 64",
    help="use one block size for slots and for the table: the kernel's",
)
def check_slots_follow_table(step: StepContext) -> Found:
    """Check every stored token against the block table."""
    facts, size = step.facts, step.known.kernel_block_size
    table, owner, position = step.table, step.owners, step.places
    slots = step.slots[: len(owner)]
    local = position
    if facts.dcp_size > 1:
        local = position // facts.virtual_block * facts.dcp_interleave + position % facts.dcp_interleave
    column, offset = _divided(local, size)
    row = np.repeat(np.arange(len(table)) * table.shape[1], step.device_query_lens)
    wanted = table.reshape(-1).take(row + column, mode="clip") * (facts.slot_span or size) + offset
    wrong = slots != wanted
    if not np.count_nonzero(wrong):
        return FINE
    wrong &= (slots >= 0) & (column < table.shape[1]) & (position >= 0)
    if not wrong.any():
        return FINE
    token = int(np.argmax(wrong))
    return (
        Breach(
            f"{step.batch_name}.slot_mapping",
            "slot is not where the block table puts the token",
            f"{wanted[token]}   (block {table[owner[token], column[token]]}, offset {offset[token]})",
            f"{slots[token]} at token {token}, position {position[token]}",
            {"kernel_block_size": size},
        ),
    )


@clause(
    "MLA226",
    "The address of the last slot fits the kernel's integers.",
    level="values",
    needs=(BATCH, fact("row_stride"), fact("wide_addresses")),
    incident="vllm#54019 vllm#56037 vllm#46222",
    example="block size 1280, stride 512, block 3277",
    help="declare 64-bit addressing, or bound the cache",
)
def check_address_range(step: StepContext) -> Found:
    """Check slot times stride against 32 bits."""
    stride, wide = step.known.row_stride, step.known.wide_addresses
    last = int(step.slots.max(initial=-1))
    if wide or last * stride < _INT32_LIMIT:
        return FINE
    wanted = f"below {_INT32_LIMIT} elements"
    got = f"{last * stride}   (slot {last} * stride {stride})"
    return (Breach(f"{step.batch_name}.slot_mapping", "address does not fit 32 bits", wanted, got),)
