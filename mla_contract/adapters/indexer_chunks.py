"""The only planner of indexer prefill chunks: gathered keys fit the consumer's buffer, and logits fit their budget."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from mla_contract.adapters.arrays import Int32Array, owners_of
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.equality import compared_by_value
from mla_contract.adapters.fault import InvalidBatch, int_faults, validate_settings

LOGIT_BYTES = 4
"""Bytes of one float32 logit."""


@dataclass(frozen=True, slots=True)
class IndexerRule:
    """What bounds an indexer chunk; everything is counted in states of ``compress_ratio`` tokens.

    Attributes:
        buffer_states: Rows of the buffer that the consumer gathers keys into, in states.
        logits_bytes: Budget of the logits, query rows times gathered states times 4 bytes.
        compress_ratio: Tokens of a state.
        parallel: The sharing of the cache, its interleave in tokens.
    """

    buffer_states: int
    logits_bytes: int
    compress_ratio: int = 1
    parallel: ContextParallel = field(default_factory=ContextParallel)

    def __post_init__(self) -> None:
        validate_settings(int_faults(self, {"buffer_states": 1, "logits_bytes": LOGIT_BYTES, "compress_ratio": 1}))
        self.parallel.in_states(self.compress_ratio)


class ChunkSlice(NamedTuple):
    """A run of prefills and a range of its query tokens, counted from the run's first."""

    request_begin: int
    request_end: int
    query_begin: int
    query_end: int


@compared_by_value
class IndexerChunkPlan(NamedTuple):
    """One chunk: keys of a run of requests, and the query tokens that are scored against them.

    Attributes:
        request_slice: Requests of the chunk, in the batch's numbering.
        token_start: First query token, in the batch's numbering.
        token_end: End of the query tokens.
        total_seq_lens: States gathered; at most the buffer.
        skip_kv_gather: Whether the chunk before gathered the same requests, so that its keys are still in the buffer.
        seq_lens: [chunk_reqs] int32, states of each request.
        cu_seq_lens: [chunk_reqs+1] int32, their prefix sum.
        cu_seqlen_ks: [chunk_tokens] int32, first gathered state of each token: local under sharing.
        cu_seqlen_ke: [chunk_tokens] int32, end of the states that a token may see: local under sharing.
        local_cu_seq_lens: [chunk_reqs+1] int32, prefix sum of this rank's states; None without sharing.
        local_total_seq_lens: States that this rank gathers; 0 without sharing.
        max_local_total_seq_lens: The largest such total of a rank; 0 without sharing.
    """

    request_slice: slice
    token_start: int
    token_end: int
    total_seq_lens: int
    skip_kv_gather: bool
    seq_lens: Int32Array
    cu_seq_lens: Int32Array
    cu_seqlen_ks: Int32Array
    cu_seqlen_ke: Int32Array
    local_cu_seq_lens: Int32Array | None = None
    local_total_seq_lens: int = 0
    max_local_total_seq_lens: int = 0

    @property
    def num_reqs(self) -> int:
        """Requests of the chunk."""
        return len(self.seq_lens)

    def token_to_seq(self) -> Int32Array:
        """Return the chunk-local owner of each gathered state: [total_seq_lens] int32, computed anew."""
        return owners_of(self.seq_lens)


@compared_by_value
class IndexerPlan(NamedTuple):
    """All chunks, and the flat arrays that their arrays are views of.

    Attributes:
        chunks: In order of their tokens; disjoint; tokens of requests without a state are in none.
        cu_seqlen_ks: [num_prefill_tokens] int32, over all prefill tokens.
        cu_seqlen_ke: [num_prefill_tokens] int32, over all prefill tokens.
        cu_seq_lens: [num_prefills + runs] int32, prefix sum of each run of requests, run after run.
        local_cu_seq_lens: [num_prefills + runs] int32, the same on this rank; None without sharing.
        max_prefill_seq_len: Longest prefill, in tokens; read since 0.30 by indexers that pool keys.
    """

    chunks: tuple[IndexerChunkPlan, ...]
    cu_seqlen_ks: Int32Array
    cu_seqlen_ke: Int32Array
    cu_seq_lens: Int32Array
    local_cu_seq_lens: Int32Array | None
    max_prefill_seq_len: int


def slice_runs(state_sums: list[int], query_sums: list[int], rule: IndexerRule) -> tuple[ChunkSlice, ...]:
    """Return runs of requests, each with the longest prefix that fits; a request too wide alone is cut by query tokens.

    Args:
        state_sums: Prefix sum of the prefills' states, one longer than they are.
        query_sums: That of their query tokens; it may begin at any offset.
        rule: The buffer and the budget.

    Returns:
        Slices in order, also of runs that have no state; runs without query tokens have none.

    Raises:
        InvalidBatch: One request with query tokens has more states than the buffer.

    Sync: none.
    Source: vLLM 0.32.0 v1/attention/backends/mla/indexer.py, _split_indexer_prefill_chunks; there a request wider than
        the buffer is passed on.
    """
    max_logits = rule.logits_bytes // LOGIT_BYTES
    slices: list[ChunkSlice] = []
    begin, num_requests = 0, len(state_sums) - 1
    while begin < num_requests:
        fits = bisect_right(state_sums, state_sums[begin] + rule.buffer_states, begin) - 1
        end = max(begin + 1, _last_within(state_sums, query_sums, (begin, fits), max_logits))
        num_states, num_rows = state_sums[end] - state_sums[begin], query_sums[end] - query_sums[begin]
        if num_states > rule.buffer_states and num_rows:
            raise InvalidBatch(
                "indexer buffer",
                {"expected": f"at most {rule.buffer_states} states", "got": num_states},
                row=begin,
                help="the buffer must hold the states of one request of the longest model length",
            )
        # A single token may exceed the budget of logits, and must be scored all the same.
        step = max(1, max_logits // num_states if num_states else num_rows)
        slices += [ChunkSlice(begin, end, query, min(query + step, num_rows)) for query in range(0, num_rows, step)]
        begin = end
    return tuple(slices)


def _last_within(state_sums: list[int], query_sums: list[int], bounds: tuple[int, int], max_logits: int) -> int:
    """Return the largest end in bounds whose query rows times states stay within the budget; both never fall."""
    begin, high = bounds
    if (state_sums[high] - state_sums[begin]) * (query_sums[high] - query_sums[begin]) <= max_logits:
        return high
    low = begin
    while low < high:
        middle = (low + high + 1) // 2
        if (state_sums[middle] - state_sums[begin]) * (query_sums[middle] - query_sums[begin]) <= max_logits:
            low = middle
        else:
            high = middle - 1
    return low
