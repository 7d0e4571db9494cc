"""The largest batch that a plan may describe, and the rows that it needs of each kind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mla_contract.adapters.fault import int_faults, validate_settings


class RowUnit(StrEnum):
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

    def rows(self, unit: RowUnit) -> int:
        """Return the rows that are counted by a unit, at most."""
        requests = max(self.max_num_seqs, self.max_capture_size)
        tokens = max(self.max_num_batched_tokens, self.max_capture_size)
        cells = self.max_num_seqs + self.max_context_chunks if self.workspace_rows is not None else 0
        sizes = {
            RowUnit.REQUESTS: requests,
            RowUnit.TOKENS: tokens,
            RowUnit.DECODE_CELLS: max(requests * self.next_n, tokens),
            RowUnit.CONTEXT_CELLS: cells,
            RowUnit.CONTEXT_EDGES: cells + self.max_context_chunks,
            # Each run of n requests has n + 1 edges, and there are at most as many runs as requests.
            RowUnit.INDEXER_EDGES: 2 * requests,
        }
        return sizes[unit]
