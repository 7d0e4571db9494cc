"""What sparse MLA backends share: one planned step, the indexer's record and op, and scratch by formula."""

from mla_contract.backends.registry import RegisteredBackend

INDEXER = RegisteredBackend(name="sparse_indexer", target="mla_contract.backends.sparse.target:fresh_indexer")
"""The indexer's record by itself: the engine's indexer has no attention backend of its own to name."""
