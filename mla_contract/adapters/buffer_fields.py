"""Which arrays of a plan live on the device: name, dtype, rows by formula, and what rows behind the live ones hold."""

from __future__ import annotations

from dataclasses import dataclass

from mla_contract.adapters.capacity import RowUnit


@dataclass(frozen=True, slots=True)
class BufferField:
    """One array on the device.

    Attributes:
        name: Its name.
        source: Where a plan has it: part and attribute, or an attribute of the plan itself.
        dtype: Name of its element type.
        unit: What its rows are counted by.
        more_rows: Rows in addition: 1 for a prefix sum.
        padding: What a row behind the live ones holds at every step; None repeats the last live value.
    """

    name: str
    source: str
    dtype: str
    unit: RowUnit
    more_rows: int = 0
    padding: int | None = 0

    @property
    def formula(self) -> str:
        """Rows as text, such as ``requests + 1``."""
        return f"{self.unit} + {self.more_rows}" if self.more_rows else str(self.unit)


FIELDS = (
    BufferField("context_gather_starts", "context.gather_starts", "int32", RowUnit.CONTEXT_CELLS),
    BufferField("context_seq_lens", "context.seq_lens", "int32", RowUnit.CONTEXT_CELLS),
    BufferField("context_cu_seq_lens", "context.cu_seq_lens", "int32", RowUnit.CONTEXT_EDGES),
    BufferField("context_query_start_loc", "context.query_start_loc", "int32", RowUnit.CONTEXT_EDGES),
    BufferField("context_local_cu_seq_lens", "context.padded_local_cu_seq_lens", "int32", RowUnit.CONTEXT_EDGES),
    BufferField("req_id_per_token", "tokens.requests", "int32", RowUnit.TOKENS),
    BufferField("sparse_start_loc", "sparse_start_loc", "int32", RowUnit.TOKENS, 1, None),
    BufferField("decode_seq_lens", "decode.seq_lens", "int32", RowUnit.DECODE_CELLS),
    BufferField("decode_global_seq_lens", "decode.global_seq_lens", "int32", RowUnit.DECODE_CELLS),
    BufferField("decode_lens", "decode.decode_lens", "int32", RowUnit.DECODE_CELLS),
    BufferField("decode_row_requests", "decode.row_requests", "int32", RowUnit.DECODE_CELLS, 0, -1),
    BufferField("positions", "tokens.positions", "int64", RowUnit.TOKENS),
    BufferField("slot_mapping", "slot_mapping", "int64", RowUnit.TOKENS, 0, -1),
    BufferField("query_start_loc", "shape.query_start_loc", "int32", RowUnit.REQUESTS, 1, None),
    BufferField("seq_lens", "shape.seq_lens", "int32", RowUnit.REQUESTS),
    BufferField("indexer_cu_seq_lens", "indexer.cu_seq_lens", "int32", RowUnit.INDEXER_EDGES),
    BufferField("indexer_local_cu_seq_lens", "indexer.local_cu_seq_lens", "int32", RowUnit.INDEXER_EDGES),
    BufferField("indexer_cu_seqlen_ks", "indexer.cu_seqlen_ks", "int32", RowUnit.TOKENS),
    BufferField("indexer_cu_seqlen_ke", "indexer.cu_seqlen_ke", "int32", RowUnit.TOKENS),
)
"""Every array but the owners of gathered rows, which grow with the context and are expanded on the device.

A copy spans what has changed. So what every step changes stands in the middle, the attention's arrays before it and
the indexer's behind.
"""
