"""Multi-token decode: how many keys each decode token may see, with a row for each request or for each token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_contract.adapters.arrays import Int32Array, counting, ones, padded, sealed
from mla_contract.adapters.context_parallel import ContextParallel, local_lens
from mla_contract.adapters.equality import compared_by_value
from mla_contract.adapters.fault import InvalidBatch, int_faults, validate_settings

if TYPE_CHECKING:
    from mla_contract.adapters.batch import BatchShape
    from mla_contract.adapters.split import Split
    from mla_contract.adapters.tokens import TokenMap

NO_REQUEST = -1
"""Owner of a padding row, which reads no request's block table."""


@dataclass(frozen=True, slots=True)
class DecodeRule:
    """How decode tokens are laid out.

    Attributes:
        flatten: A row is a token; else a row is a request, with a column for each of its tokens.
        next_n: Longest decode query, in tokens: speculated tokens and one more.
        compress_ratio: Tokens of a state; lengths are given in states.
        parallel: The sharing of the cache, its interleave in tokens.
    """

    flatten: bool = False
    next_n: int = 1
    compress_ratio: int = 1
    parallel: ContextParallel = field(default_factory=ContextParallel)

    def __post_init__(self) -> None:
        validate_settings(int_faults(self, {"next_n": 1, "compress_ratio": 1}))
        self.parallel.in_states(self.compress_ratio)


@compared_by_value
class DecodePlan(NamedTuple):
    """Rows of the decode part; a row is a token when flattened, a request when native.

    Attributes:
        flattened: Whether a row is a token.
        num_rows: Rows: ``num_decode_tokens`` when flattened, ``num_decodes`` when native.
        max_decode_len: Longest decode query, in tokens; native ``seq_lens`` have as many columns, but at least 1.
        seq_lens: [num_rows] or [num_rows, max_decode_len] int32, keys each token may see, on this rank, in states.
            0 on padding, never negative.
        global_seq_lens: [num_rows] int32, keys over all ranks in tokens, not localised: those of a row's token where
            flattened rows are several of a request, else [num_decodes], those of the whole request; 0 on padding; None
            without sharing.
        decode_lens: [num_rows] int32, query tokens of each row; 0 on padding rows.
        per_req_decode_lens: [num_decodes] int32, query tokens of each request.
        row_requests: [num_rows] int32, request whose block table a row reads; ``NO_REQUEST`` on padding rows.
        requires_padding: Whether tokens are not rows times one length, so that queries must be packed into rows.
    """

    flattened: bool
    num_rows: int
    max_decode_len: int
    seq_lens: Int32Array
    global_seq_lens: Int32Array | None
    decode_lens: Int32Array
    per_req_decode_lens: Int32Array
    row_requests: Int32Array
    requires_padding: bool


class _Rows(NamedTuple):
    """Keys that each token may see, request of each row, query tokens of each row."""

    visible: NDArray[Any]
    requests: NDArray[Any]
    lens: NDArray[Any]


def expand_decodes(shape: BatchShape, tokens: TokenMap, split: Split, rule: DecodeRule) -> DecodePlan | None:
    """Return the per-token lengths of the decodes.

    Token j of a request with c cached tokens sees ``c + j + 1`` keys. Localisation follows the expansion.

    Args:
        shape: The batch.
        tokens: Its tokens' positions.
        split: Its division.
        rule: Layout, states and sharing.

    Returns:
        The rows; None without decodes.

    Raises:
        InvalidBatch: A query is longer than a native row.

    Sync: none.
    Source: vLLM 0.32.0 v1/attention/backends/mla/indexer.py, _prepare_decode_tensors, _prepare_global_decode_seq_lens
        and _dcp_localize_decode_seq_lens.
    """
    if split.num_decodes == 0:
        return None
    lens = shape.query_lens[: split.num_decodes]
    longest = int(np.maximum.reduce(lens))
    num_live = int(shape.query_start_loc[split.num_decodes])
    if rule.flatten:
        rows = _token_rows(tokens, min(num_live, tokens.num_live), split.num_decode_tokens)
    else:
        rows = _request_rows(lens, shape.context_lens[: split.num_decodes], longest, rule.next_n)
    states = rows.visible if rule.compress_ratio == 1 else rows.visible // rule.compress_ratio
    sharing = rule.parallel.in_states(rule.compress_ratio)
    uniform = longest * len(lens) == split.num_decode_tokens == num_live
    return DecodePlan(
        flattened=rule.flatten,
        num_rows=len(rows.requests),
        max_decode_len=longest,
        seq_lens=sealed(local_lens(states, sharing) if sharing.size > 1 else states),
        global_seq_lens=_global_lens(shape, split, rows, rule.flatten and longest > 1) if sharing.size > 1 else None,
        decode_lens=sealed(rows.lens),
        per_req_decode_lens=lens,
        row_requests=sealed(rows.requests),
        requires_padding=not rule.flatten and not uniform,
    )


def _global_lens(shape: BatchShape, split: Split, rows: _Rows, by_token: bool) -> Int32Array:
    """Return the lengths over all ranks, of tokens or of requests."""
    return sealed(rows.visible) if by_token else shape.seq_lens[: split.num_decodes]


def _token_rows(tokens: TokenMap, num_live: int, num_rows: int) -> _Rows:
    """Return one row for each token; tokens behind the live ones are padding."""
    if num_live == num_rows:
        whole = num_rows == len(tokens.requests)
        requests = tokens.requests if whole else tokens.requests[:num_rows]
        return _Rows(tokens.visible[:num_rows], requests, ones(num_rows))
    lens = np.ones(num_rows, dtype=np.int32)
    lens[num_live:] = 0
    return _Rows(
        padded(tokens.visible[:num_live], num_rows, 0), padded(tokens.requests[:num_live], num_rows, NO_REQUEST), lens
    )


def _request_rows(lens: Int32Array, context: Int32Array, longest: int, next_n: int) -> _Rows:
    """Return one row for each request."""
    if longest > next_n:
        row = int(lens.argmax())
        facts = {"expected": f"at most next_n={next_n} tokens", "got": longest}
        raise InvalidBatch("decode query", facts, row=row, help="flatten, or lower the decode threshold to next_n")
    # Kernels want a column even where every row is padding.
    column = np.arange(max(longest, 1), dtype=np.int32)
    visible = np.where(column < lens[:, np.newaxis], context[:, np.newaxis] + column + 1, 0)
    return _Rows(visible, np.where(lens > 0, counting(len(lens)), NO_REQUEST), lens)
