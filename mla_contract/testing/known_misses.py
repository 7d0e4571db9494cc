"""Planted faults that no check reports today, with the reason; a test holds the list exact in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_UNREAD = "no clause reads the field's values"
_ROWS = "its axis is bound by no count of the record, and no clause compares its rows"

KNOWN_MISSES: Mapping[tuple[str, str, str], str] = MappingProxyType(
    {
        ("element too large", "ChunkedContext", "context_lens"): _UNREAD,
        ("element too small", "ChunkedContext", "context_lens"): _UNREAD,
        ("wrong flag", "ContextChunk", "is_continuation"): _UNREAD,
        ("wrong index", "ContextChunk", "index"): _UNREAD,
        ("element too large", "ContextChunk", "padded_local_cu_seq_lens"): _UNREAD,
        ("element too small", "ContextChunk", "padded_local_cu_seq_lens"): _UNREAD,
        ("element too large", "ContextChunk", "padded_local_token_to_seq"): _UNREAD,
        ("element too small", "ContextChunk", "padded_local_token_to_seq"): _UNREAD,
        ("element too large", "ContextChunk", "local_starts"): _UNREAD,
        ("row too few", "Indexer", "seq_lens"): _ROWS,
        ("row too many", "Indexer", "seq_lens"): _ROWS,
        ("element too small", "IndexerDecode", "decode_lens"): "MLA347 bounds the sum from above only",
        ("row too few", "IndexerDecode", "global_seq_lens"): _ROWS,
        ("row too many", "IndexerDecode", "global_seq_lens"): _ROWS,
    }
)
"""By the fault's key: kind, class and field."""
