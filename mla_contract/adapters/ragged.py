"""Ragged batches: lengths, prefix sums, per-token owners and positions, and cache slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_contract.adapters.arrays import (
    INT32,
    Int32Array,
    Int64Array,
    IntsLike,
    counting,
    ones,
    padded,
    prefix_sum,
    sealed,
    sealed64,
)
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.fault import InvalidBatch

if TYPE_CHECKING:
    from mla_contract.adapters.batch import BatchShape

PADDING_REQUEST = 0
"""Owner of a padding token: a row that exists, whose blocks the token must not write."""
NO_SLOT = -1
"""Lane of a token that is not stored on this rank. Source: vLLM 0.32.0 v1/attention/backends/utils.py, PAD_SLOT_ID."""


def start_loc_of(lens: IntsLike) -> Int32Array:
    """Return the prefix sum of lengths.

    Args:
        lens: [n] ints, tokens.

    Returns:
        [n+1] int32, from 0 to the total.

    Sync: none.
    """
    return prefix_sum(np.asarray(lens))


def lens_of(start_loc: IntsLike) -> Int32Array:
    """Return the lengths behind a prefix sum.

    Args:
        start_loc: [n+1] ints, tokens.

    Returns:
        [n] int32.

    Raises:
        InvalidBatch: The prefix sum is empty, does not begin with 0, or falls.

    Sync: none.
    """
    array = np.asarray(start_loc)
    if len(array) == 0 or array[0] != 0:
        raise InvalidBatch("query_start_loc", {"expected": "first offset 0", "got": array[:1].tolist()})
    if array.dtype == INT32 and array.tobytes() == counting(len(array)).tobytes():
        return ones(len(array) - 1)
    lens = array[1:] - array[:-1]
    if len(lens) and np.minimum.reduce(lens) < 0:
        row = int((lens < 0).argmax())
        facts = {"expected": f"at least {array[row]}", "got": int(array[row + 1])}
        raise InvalidBatch("query_start_loc falls", facts, row=row, help="padding rows repeat the last offset")
    return sealed(lens)


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
    if shape.max_query_len == 1 and num_live == num_tokens == shape.num_reqs:
        return TokenMap(counting(num_tokens), sealed64(shape.context_lens.astype(np.int64)), shape.seq_lens, num_live)
    requests = counting(shape.num_reqs).repeat(shape.query_lens)
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
        InvalidBatch: A position lies beyond its request's row of the table.

    Sync: none.
    Source: vLLM 0.32.0 v1/worker/block_table.py, compute_slot_mapping.
    """
    requests = tokens.requests[: tokens.num_live]
    column, offset = np.divmod(tokens.positions[: tokens.num_live], block_size * parallel.size)
    _validate_columns(column, requests, block_table.shape[1])
    slots = np.full(len(tokens.positions), NO_SLOT, dtype=np.int64)
    blocks = block_table[requests, column].astype(np.int64)
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


def sparse_start_loc(tokens: TokenMap, topk_tokens: int) -> Int32Array:
    """Return the prefix sum of the keys that each token reads under sparse attention.

    Args:
        tokens: Positions of the tokens.
        topk_tokens: Keys that a token reads at most.

    Returns:
        [num_tokens+1] int32; padding tokens repeat the last offset.

    Sync: none.
    Source: vLLM 0.32.0 v1/attention/backends/mla/rocm_aiter_mla_sparse.py, paged_kv_indptr.
    """
    return prefix_sum(np.minimum(tokens.visible, topk_tokens))
