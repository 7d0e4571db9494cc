"""The planner's input: the lengths of one step's batch, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from mla_contract.adapters.arrays import BoolArray, Int32Array, IntsLike, counting, ones, prefix_sum, sealed
from mla_contract.adapters.equality import compared_by_value
from mla_contract.adapters.fault import InvalidBatch, is_int
from mla_contract.adapters.lengths import MOST, int32_lens, lens_of, validate_lens


class BatchOptions(TypedDict, total=False):
    """What a batch may say beyond its lengths; the attributes of ``BatchShape`` say what each is."""

    num_actual_tokens: int | None
    max_query_len: int | None
    is_prefilling: Sequence[bool] | NDArray[np.bool_] | None
    split_query_lens: IntsLike | None
    block_table: NDArray[Any] | None


@compared_by_value
class BatchShape(NamedTuple):
    """Lengths of one batch on the host; make it with ``of`` or ``from_start_loc``, which check them.

    Attributes:
        query_lens: [num_reqs] int32, new tokens of each request; 0 on a padding request.
        seq_lens: [num_reqs] int32, cached and new tokens; may be an upper bound on decodes; 0 on a padding request.
        context_lens: [num_reqs] int32, cached tokens: ``seq_lens - query_lens``.
        query_start_loc: [num_reqs+1] int32, prefix sum of ``query_lens``.
        num_actual_tokens: Tokens of the batch; more than the sum of ``query_lens`` when tokens are padded, as graph
            replay does: the tokens behind the last offset belong to no request.
        max_query_len: Longest query, in tokens; an upper bound when the caller says so.
        is_prefilling: [num_reqs] bool, whether a request still computes its prompt; None when unknown. A caller may
            leave out trailing padding requests, which compute none.
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
    def of(cls, query_lens: IntsLike, seq_lens: IntsLike, **options: Unpack[BatchOptions]) -> BatchShape:
        """Check the lengths and return the batch.

        Args:
            query_lens: [num_reqs] ints, tokens.
            seq_lens: [num_reqs] ints, tokens.
            **options: As the attributes say; each may be left out, or be None.

        Raises:
            InvalidBatch: Lengths are not ints, do not fit int32, or contradict one another; names the row.

        Sync: none.
        Source: vLLM 0.32.0 v1/attention/backend.py, CommonAttentionMetadata.
        """
        lens = int32_lens("query_lens", query_lens)
        return cls._of(lens, prefix_sum(lens), seq_lens, **options)

    @classmethod
    def from_start_loc(
        cls, query_start_loc: IntsLike, seq_lens: IntsLike, **options: Unpack[BatchOptions]
    ) -> BatchShape:
        """Check a prefix sum of query lengths and return the batch; otherwise as ``of``.

        Args:
            query_start_loc: [num_reqs+1] ints, tokens.
            seq_lens: [num_reqs] ints, tokens.
            **options: As for ``of``.

        Raises:
            InvalidBatch: Offsets fall, or lengths contradict one another; names the row.

        Sync: none.
        """
        offsets = int32_lens("query_start_loc", query_start_loc)
        lens = lens_of(offsets)
        if lens is ones(len(lens)):
            return cls._of(lens, counting(len(lens) + 1), seq_lens, **options)
        return cls._of(lens, sealed(offsets), seq_lens, **options)

    @classmethod
    def _of(
        cls,
        lens: Int32Array,
        start_loc: Int32Array,
        seq_lens: IntsLike,
        *,
        num_actual_tokens: int | None = None,
        max_query_len: int | None = None,
        is_prefilling: Sequence[bool] | NDArray[np.bool_] | None = None,
        split_query_lens: IntsLike | None = None,
        block_table: NDArray[Any] | None = None,
    ) -> BatchShape:
        """Check everything, and return the batch; the prefix sum is that of ``lens``."""
        totals = int32_lens("seq_lens", seq_lens)
        context = validate_lens(lens, totals, start_loc)
        judged = None if split_query_lens is None else _split_lens(split_query_lens, len(lens))
        return cls(
            query_lens=sealed(lens),
            seq_lens=sealed(totals),
            context_lens=context,
            query_start_loc=start_loc,
            num_actual_tokens=_token_count(num_actual_tokens, int(start_loc[-1])),
            max_query_len=_longest(max_query_len, lens if judged is None else judged),
            is_prefilling=None if is_prefilling is None else _flags(is_prefilling, lens),
            split_query_lens=judged,
            block_table=None if block_table is None else _table(block_table, len(lens)),
        )


def _flags(values: Any, lens: Int32Array) -> BoolArray:
    """Return a copy of one flag for each request, read-only; False where trailing padding requests have none.

    Source: vLLM 0.32.0 v1/worker/gpu/model_states/default.py gives flags of live requests to a padded batch.
    """
    array, num_reqs = np.array(values), len(lens)
    if array.shape == (0,):
        array = array.astype(np.bool_)
    if array.ndim == 1 and array.dtype == np.bool_ and len(array) < num_reqs and not lens[len(array) :].any():
        array = np.concatenate([array, np.zeros(num_reqs - len(array), dtype=np.bool_)])
    if array.shape != (num_reqs,) or array.dtype != np.bool_:
        facts = {"expected": f"bool, shape ({num_reqs},)", "got": f"{array.dtype}, shape {array.shape}"}
        raise InvalidBatch("is_prefilling", facts, help="only trailing padding requests may have no flag")
    array.setflags(write=False)
    return array


def _split_lens(values: IntsLike, num_reqs: int) -> Int32Array:
    """Return the lengths by which the split judges rows."""
    array = int32_lens("split_query_lens", values)
    if len(array) != num_reqs:
        raise InvalidBatch("split_query_lens", {"expected": f"shape ({num_reqs},)", "got": f"shape {array.shape}"})
    if num_reqs and np.minimum.reduce(array) < 0:
        row = int(array.argmin())
        raise InvalidBatch("split_query_lens", {"expected": "at least 0", "got": int(array[row])}, row=row)
    return sealed(array)


def _table(block_table: NDArray[Any], num_reqs: int) -> NDArray[Any]:
    """Return the block table; it is read while slots are planned, and not kept."""
    array = np.asarray(block_table)
    if array.ndim != 2 or array.dtype.kind not in "iu" or len(array) != num_reqs:
        raise InvalidBatch(
            "block_table",
            {"expected": f"ints, shape ({num_reqs}, max_blocks)", "got": f"{array.dtype}, shape {array.shape}"},
            help="pass the rows of this batch's requests",
        )
    return array


def _token_count(declared: int | None, num_live: int) -> int:
    """Return the number of tokens, which padding may raise above the live ones."""
    if declared is None:
        return num_live
    if not is_int(declared) or not num_live <= declared <= MOST:
        raise InvalidBatch(
            "num_actual_tokens",
            {"expected": f"an int of at least {num_live}, the sum of query_lens", "got": f"{declared!r}"},
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
    if declared is None:
        return longest
    if not is_int(declared) or not longest <= declared <= MOST:
        row = int(judged.argmax()) if len(judged) else None
        raise InvalidBatch(
            "max_query_len", {"expected": f"an int of at least {longest}", "got": f"{declared!r}"}, row=row
        )
    return int(declared)
