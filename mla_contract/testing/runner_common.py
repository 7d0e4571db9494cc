"""A recorded batch as a builder is handed it: with blocks and slots derived from its lengths."""

from __future__ import annotations

import numpy as np

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.tokens import map_tokens, token_slots
from mla_contract.testing.context_records import tensor
from mla_contract.testing.corpus import derived_block_table
from mla_contract.testing.records import PlainBatch
from mla_contract.testing.runner_batches import RunnerBatch


def common_batch_of(batch: RunnerBatch, block_size: int) -> PlainBatch:
    """Return the common batch, in its own sharing of the cache.

    Args:
        batch: The recorded batch.
        block_size: Tokens of a block.

    Sync: none.
    """
    lens, bounds = batch.seq_lens, batch.seq_lens_cpu_upper_bound
    table = derived_block_table(bounds, block_size, batch.parallel.size, batch.max_seq_len)
    shape = BatchShape.of(batch.query_lens, lens, num_actual_tokens=batch.num_actual_tokens)
    slots = np.full(batch.num_slots, -1, np.int64)
    slots[: shape.num_actual_tokens] = token_slots(table, map_tokens(shape), block_size, batch.parallel)
    start_loc = tensor(shape.query_start_loc)
    local, flags = batch.dcp_local_seq_lens, batch.is_prefilling
    return PlainBatch(
        query_start_loc=start_loc.clone(),
        query_start_loc_cpu=start_loc,
        seq_lens=tensor(np.asarray(lens)),
        num_reqs=shape.num_reqs,
        num_actual_tokens=batch.num_actual_tokens,
        max_query_len=batch.max_query_len,
        max_seq_len=batch.max_seq_len,
        block_table_tensor=tensor(table),
        slot_mapping=tensor(slots, "int64"),
        dcp_local_seq_lens=None if local is None else tensor(np.asarray(local)),
        is_prefilling=None if flags is None else tensor(np.asarray(flags), "bool"),
        seq_lens_cpu_upper_bound=tensor(np.asarray(bounds)),
    )
