"""The planner's input: the lengths of one step's batch, checked once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_contract.adapters.arrays import INT32, BoolArray, Int32Array, IntsLike, counting, ones, prefix_sum, sealed
from mla_contract.adapters.fault import InvalidBatch
from mla_contract.adapters.ragged import lens_of


class BatchShape(NamedTuple):
    """Lengths of one batch on the host; make it with ``of`` or ``from_start_loc``, which check them.

    Attributes:
        query_lens: [num_reqs] int32, new tokens of each request; 0 on a padding request.
        seq_lens: [num_reqs] int32, cached and new tokens; may be an upper bound on decodes; 0 on a padding request.
        context_lens: [num_reqs] int32, cached tokens: ``seq_lens - query_lens``.
        query_start_loc: [num_reqs+1] int32, prefix sum of ``query_lens``.
        num_actual_tokens: Tokens of the batch; more than the sum of ``query_lens`` when tokens are padded.
        max_query_len: Longest query, in tokens; an upper bound when the caller says so.
        is_prefilling: [num_reqs] bool, whether a request still computes its prompt; None when unknown.
        split_query_lens: [num_reqs] int32, lengths by which the split judges rows; None takes ``query_lens``.
        block_table: [num_reqs, max_blocks] ints, physical blocks; None where slots are not planned.
    """

    query_lens: Int32Array
    seq_lens: Int32Array
    context_lens: Int32Array
    query_start_loc: Int32Array
    num_actual_tokens: int
    max_query_len: int
    is_prefilling: BoolArray | None = None
    split_query_lens: Int32Array | None = None
    block_table: NDArray[Any] | None = None

    @property
    def num_reqs(self) -> int:
        """Requests of the batch, padding requests included."""
        return len(self.query_lens)

    @property
    def num_live_tokens(self) -> int:
        """Query tokens that belong to a request."""
        return int(self.query_start_loc[-1])

    @classmethod
    def of(cls, query_lens: IntsLike, seq_lens: IntsLike, **options: Any) -> BatchShape:
        """Check the lengths and return the batch.

        Args:
            query_lens: [num_reqs] ints, tokens.
            seq_lens: [num_reqs] ints, tokens.
            **options: ``num_actual_tokens``, ``max_query_len``, ``is_prefilling``, ``split_query_lens`` and
                ``block_table``, as the attributes say.

        Raises:
            InvalidBatch: Lengths contradict one another; names the row.

        Sync: none.
        Source: vLLM 0.32.0 v1/attention/backend.py, CommonAttentionMetadata.
        """
        lens = np.array(query_lens, dtype=INT32)
        return cls._of(lens, prefix_sum(lens), seq_lens, options)

    @classmethod
    def _of(cls, lens: Int32Array, start_loc: Int32Array, seq_lens: IntsLike, options: dict[str, Any]) -> BatchShape:
        """Check the lengths, and return the batch; the prefix sum is that of ``lens``."""
        totals = np.array(seq_lens, dtype=INT32)
        overriding = options.pop("split_query_lens", None)
        judged = lens if overriding is None else _per_request("split_query_lens", overriding, len(lens), np.int32)
        flags = options.pop("is_prefilling", None)
        num_tokens = options.pop("num_actual_tokens", None)
        longest = options.pop("max_query_len", None)
        return cls(
            context_lens=_context_lens(lens, totals),
            query_lens=sealed(lens),
            seq_lens=sealed(totals),
            query_start_loc=start_loc,
            num_actual_tokens=_token_count(num_tokens, int(start_loc[-1])),
            max_query_len=_longest(longest, judged),
            is_prefilling=None if flags is None else _per_request("is_prefilling", flags, len(lens), np.bool_),
            split_query_lens=None if overriding is None else judged,
            **options,
        )

    @classmethod
    def from_start_loc(cls, query_start_loc: IntsLike, seq_lens: IntsLike, **options: Any) -> BatchShape:
        """Check a prefix sum of query lengths and return the batch; otherwise as ``of``.

        Args:
            query_start_loc: [num_reqs+1] ints, tokens.
            seq_lens: [num_reqs] ints, tokens.
            **options: As for ``of``.

        Raises:
            InvalidBatch: Offsets fall, or lengths contradict one another; names the row.

        Sync: none.
        """
        lens = lens_of(query_start_loc)
        if lens is ones(len(lens)):
            return cls._of(lens, counting(len(lens) + 1), seq_lens, options)
        return cls._of(lens, sealed(np.array(query_start_loc, dtype=INT32)), seq_lens, options)


def _per_request(name: str, values: Any, num_reqs: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Return a copy of one value for each request, read-only."""
    array = np.array(values, dtype=dtype)
    if array.shape != (num_reqs,):
        raise InvalidBatch(name, {"expected": f"shape ({num_reqs},)", "got": f"shape {array.shape}"})
    array.setflags(write=False)
    return array


def _context_lens(lens: Int32Array, totals: Int32Array) -> Int32Array:
    """Return the cached tokens, after checking that no length is negative."""
    if lens.ndim != 1 or lens.shape != totals.shape:
        raise InvalidBatch("seq_lens", {"expected": f"shape {lens.shape}", "got": f"shape {totals.shape}"})
    context = totals - lens
    if len(lens) and np.minimum.reduce(lens | context) < 0:
        row = int(((lens < 0) | (context < 0)).argmax())
        raise InvalidBatch(
            "seq_lens",
            {"expected": "0 <= query_len <= seq_len", "got": f"query_len={lens[row]} seq_len={totals[row]}"},
            row=row,
        )
    return sealed(context)


def _token_count(declared: int | None, num_live: int) -> int:
    """Return the number of tokens, which padding may raise above the live ones."""
    if declared is None:
        return num_live
    if declared < num_live:
        raise InvalidBatch(
            "num_actual_tokens",
            {"expected": f"at least {num_live}, the sum of query_lens", "got": declared},
            help="pad requests and tokens together; padding requests have query length 0",
        )
    return int(declared)


def _longest(declared: int | None, judged: Int32Array) -> int:
    """Return the longest query, or the caller's upper bound."""
    if judged is ones(len(judged)):
        longest = min(len(judged), 1)
    elif len(judged):
        longest = int(np.maximum.reduce(judged))
    else:
        longest = 0
    if declared is not None and declared < longest:
        row = int(judged.argmax())
        raise InvalidBatch("max_query_len", {"expected": f"at least {longest}", "got": declared}, row=row)
    return longest if declared is None else int(declared)
