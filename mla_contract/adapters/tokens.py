"""Ragged batches: per-token owners and positions, and cache slots."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_contract.adapters.arrays import (
    Int32Array,
    Int64Array,
    counting,
    padded,
    prefix_sum,
    sealed,
    sealed64,
)
from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.equality import compared_by_value
from mla_contract.adapters.fault import InvalidBatch
from mla_contract.adapters.lengths import MOST

PADDING_REQUEST = 0
"""Owner of a padding token: a row that exists, whose blocks the token must not write."""
NO_SLOT = -1
"""Lane of a token that is not stored on this rank. Source: vLLM 0.32.0 v1/attention/backends/utils.py, PAD_SLOT_ID."""


@compared_by_value
class TokenMap(NamedTuple):
    """Where each token of a batch belongs.

    Attributes:
        requests: [num_tokens] int32, the owner; ``PADDING_REQUEST`` on padding tokens, which are last.
        positions: [num_tokens] int64, position in the request; 0 on padding tokens.
        visible: [num_tokens] int32, keys up to and with the token's own: position and one; 0 on padding tokens.
        num_live: Tokens that are not padding.
    """

    requests: Int32Array
    positions: Int64Array
    visible: Int32Array
    num_live: int


def map_tokens(shape: BatchShape) -> TokenMap:
    """Return the owner and the position of each token.

    Args:
        shape: The batch.

    Sync: none.
    Source: vLLM 0.32.0 v1/worker/gpu_model_runner.py, where owners repeat a request's index and positions are computed
        tokens and an arange; v1/attention/ops/metadata.py, compute_token_to_req_indices, for padding.
    """
    num_live, num_tokens = shape.num_live_tokens, shape.num_actual_tokens
    # A step of decodes alone, the most frequent one: each request is a token, so nothing needs to be repeated.
    if shape.max_query_len == 1 and num_live == num_tokens == shape.num_reqs:
        return TokenMap(counting(num_tokens), sealed64(shape.context_lens.astype(np.int64)), shape.seq_lens, num_live)
    requests = counting(shape.num_reqs).repeat(shape.query_lens)
    # Token t of the batch, of a request whose tokens end at e and whose sequence ends at s, sees s - e + t + 1 keys.
    visible = (shape.seq_lens - shape.query_start_loc[1:]).repeat(shape.query_lens)
    visible += counting(num_live + 1)[1:]
    positions = visible.astype(np.int64)
    positions -= 1
    return TokenMap(
        requests=sealed(padded(requests, num_tokens, PADDING_REQUEST)),
        positions=sealed64(padded(positions, num_tokens, 0)),
        visible=sealed(padded(visible, num_tokens, 0)),
        num_live=num_live,
    )


def token_slots(block_table: NDArray[Any], tokens: TokenMap, block_size: int, parallel: ContextParallel) -> Int64Array:
    """Return the cache slot of each token.

    Args:
        block_table: [num_reqs, max_blocks] ints, physical blocks of ``block_size`` tokens.
        tokens: Owners and positions.
        block_size: Tokens of a block *as the kernel counts blocks*; under sharing, of one rank.
        parallel: The sharing of the cache.

    Returns:
        [num_tokens] int64, block times block size plus offset; ``NO_SLOT`` on padding and on tokens of other ranks.

    Raises:
        InvalidBatch: A position lies beyond its request's row of the table, or its block is negative.

    Sync: none.
    Source: vLLM 0.32.0 v1/worker/block_table.py, compute_slot_mapping.
    """
    requests = tokens.requests[: tokens.num_live]
    column, offset = np.divmod(tokens.positions[: tokens.num_live], block_size * parallel.size)
    _validate_columns(column, requests, block_table.shape[1])
    blocks = block_table[requests, column].astype(np.int64)
    _validate_blocks(blocks, column, requests)
    slots = np.full(len(tokens.positions), NO_SLOT, dtype=np.int64)
    if parallel.size == 1:
        slots[: tokens.num_live] = blocks * block_size + offset
        return sealed64(slots)
    stored = offset // parallel.interleave % parallel.size == parallel.rank
    local = offset // parallel.span * parallel.interleave + offset % parallel.interleave
    slots[: tokens.num_live] = np.where(stored, blocks * block_size + local, NO_SLOT)
    return sealed64(slots)


def _validate_columns(column: Int64Array, requests: Int32Array, num_columns: int) -> None:
    """Raise if a token's block lies beyond its row of the table."""
    if len(column) and column.max() >= num_columns:
        token = int((column >= num_columns).argmax())
        facts = {"expected": f"column below {num_columns}", "got": int(column[token]), "token": token}
        raise InvalidBatch("block_table", facts, row=int(requests[token]), help="the table is too narrow for seq_lens")


def _validate_blocks(blocks: Int64Array, column: Int64Array, requests: Int32Array) -> None:
    """Raise if a token's block is negative: its slot would be too, and -1 would pass for a token stored elsewhere."""
    if len(blocks) and blocks.min() < 0:
        token = int((blocks < 0).argmax())
        facts = {"expected": f"a block in column {column[token]}", "got": int(blocks[token]), "token": token}
        raise InvalidBatch("block_table", facts, row=int(requests[token]))


def sparse_start_loc(tokens: TokenMap, topk_tokens: int) -> Int32Array:
    """Return the prefix sum of the keys that each token reads under sparse attention.

    Args:
        tokens: Positions of the tokens.
        topk_tokens: Keys that a token reads at most.

    Returns:
        [num_tokens+1] int32; padding tokens repeat the last offset.

    Raises:
        InvalidBatch: The tokens read more keys than int32 can count; names the request.

    Sync: none.
    Source: vLLM 0.32.0 v1/attention/backends/mla/rocm_aiter_mla_sparse.py, paged_kv_indptr.
    """
    sums = prefix_sum(np.minimum(tokens.visible, topk_tokens))
    if len(sums) * topk_tokens > MOST and sums.min() < 0:
        token = int((sums < 0).argmax()) - 1
        facts = {"expected": f"at most {MOST} keys of all tokens together, to fit int32", "got": f"more at {token=}"}
        raise InvalidBatch("sparse_start_loc", facts, row=int(tokens.requests[token]), help="make smaller steps")
    return sums
