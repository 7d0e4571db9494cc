"""Which arrays of a plan live on the device: name, dtype, rows by formula, and what rows behind the live ones hold."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mla_contract.adapters.fault import int_faults, validate_settings


class Axis(StrEnum):
    """What the rows of a field are counted by; each has a capacity."""

    REQUESTS = "requests"
    """Requests, padding included: the larger of ``max_num_seqs`` and the largest captured batch."""
    TOKENS = "tokens"
    """Query tokens, padding included."""
    DECODE_CELLS = "decode cells"
    """Decode tokens, or decode requests times their longest query."""
    CONTEXT_CELLS = "context cells"
    """Prefills in context chunks."""
    CONTEXT_EDGES = "context edges"
    """Context cells, and one more for each chunk."""
    INDEXER_EDGES = "indexer edges"
    """Prefills, and one more for each run of them."""


@dataclass(frozen=True, slots=True)
class BufferField:
    """One array on the device.

    Attributes:
        name: Its name.
        source: Where a plan has it: part and attribute, or an attribute of the plan itself.
        dtype: Name of its element type.
        axis: What its rows are counted by.
        more_rows: Rows in addition: 1 for a prefix sum.
        padding: What a row behind the live ones holds at every step; None repeats the last live value.
    """

    name: str
    source: str
    dtype: str
    axis: Axis
    more_rows: int = 0
    padding: int | None = 0

    @property
    def formula(self) -> str:
        """Rows as text, such as ``requests + 1``."""
        return f"{self.axis} + {self.more_rows}" if self.more_rows else str(self.axis)


FIELDS = (
    BufferField("context_gather_starts", "context.gather_starts", "int32", Axis.CONTEXT_CELLS),
    BufferField("context_seq_lens", "context.seq_lens", "int32", Axis.CONTEXT_CELLS),
    BufferField("context_cu_seq_lens", "context.cu_seq_lens", "int32", Axis.CONTEXT_EDGES),
    BufferField("context_query_start_loc", "context.query_start_loc", "int32", Axis.CONTEXT_EDGES),
    BufferField("context_local_cu_seq_lens", "context.padded_local_cu_seq_lens", "int32", Axis.CONTEXT_EDGES),
    BufferField("req_id_per_token", "tokens.requests", "int32", Axis.TOKENS),
    BufferField("sparse_start_loc", "sparse_start_loc", "int32", Axis.TOKENS, 1, None),
    BufferField("decode_seq_lens", "decode.seq_lens", "int32", Axis.DECODE_CELLS),
    BufferField("decode_global_seq_lens", "decode.global_seq_lens", "int32", Axis.DECODE_CELLS),
    BufferField("decode_lens", "decode.decode_lens", "int32", Axis.DECODE_CELLS),
    BufferField("decode_row_requests", "decode.row_requests", "int32", Axis.DECODE_CELLS, 0, -1),
    BufferField("positions", "tokens.positions", "int64", Axis.TOKENS),
    BufferField("slot_mapping", "slot_mapping", "int64", Axis.TOKENS, 0, -1),
    BufferField("query_start_loc", "shape.query_start_loc", "int32", Axis.REQUESTS, 1, None),
    BufferField("seq_lens", "shape.seq_lens", "int32", Axis.REQUESTS),
    BufferField("indexer_cu_seq_lens", "indexer.cu_seq_lens", "int32", Axis.INDEXER_EDGES),
    BufferField("indexer_local_cu_seq_lens", "indexer.local_cu_seq_lens", "int32", Axis.INDEXER_EDGES),
    BufferField("indexer_cu_seqlen_ks", "indexer.cu_seqlen_ks", "int32", Axis.TOKENS),
    BufferField("indexer_cu_seqlen_ke", "indexer.cu_seqlen_ke", "int32", Axis.TOKENS),
)
"""Every array but the owners of gathered rows, which grow with the context and are expanded on the device.

A copy spans what has changed. So what every step changes stands in the middle, the attention's arrays before it and
the indexer's behind.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The largest batch that a plan may describe.

    Attributes:
        max_num_seqs: Requests of a batch.
        max_num_batched_tokens: Query tokens of a batch.
        max_capture_size: Tokens, and requests, of the largest captured graph; 0 without graphs.
        next_n: Longest decode query, in tokens.
        max_context_tokens: Cached tokens of all requests together: at most what the cache holds.
        workspace_rows: Rows of the context workspace; None where no context is planned.
        span: Tokens of a round of dealing between ranks; 1 without sharing.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_capture_size: int = 0
    next_n: int = 1
    max_context_tokens: int = 0
    workspace_rows: int | None = None
    span: int = 1

    def __post_init__(self) -> None:
        least = {"max_num_seqs": 1, "max_num_batched_tokens": 1, "max_capture_size": 0, "next_n": 1}
        faults = int_faults(self, least | {"max_context_tokens": 0, "span": 1}, {"workspace_rows": 1})
        validate_settings(faults)

    @property
    def max_context_chunks(self) -> int:
        """Context chunks of a batch, at most.

        A chunk ends at a prefill without context, or because the next piece does not fit; two chunks in a row of the
        latter gather more than one workspace together. Under sharing, a context is rounded up to a round of dealing.
        """
        if self.workspace_rows is None:
            return 0
        rows = self.max_context_tokens + self.max_num_seqs * self.span
        return self.max_num_seqs + 2 * -(-rows // self.workspace_rows) + 1

    def rows(self, axis: Axis) -> int:
        """Return the rows that an axis has at most."""
        requests = max(self.max_num_seqs, self.max_capture_size)
        tokens = max(self.max_num_batched_tokens, self.max_capture_size)
        cells = self.max_num_seqs + self.max_context_chunks if self.workspace_rows is not None else 0
        sizes = {
            Axis.REQUESTS: requests,
            Axis.TOKENS: tokens,
            Axis.DECODE_CELLS: max(requests * self.next_n, tokens),
            Axis.CONTEXT_CELLS: cells,
            Axis.CONTEXT_EDGES: cells + self.max_context_chunks,
            Axis.INDEXER_EDGES: 2 * requests,
        }
        return sizes[axis]
