"""The indexer op: selects the leading positions of each token, without looking at keys."""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Register the op out of tree."""
    import torch
    from vllm.forward_context import get_forward_context
    from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer

    class LeadingPositions(SparseAttnIndexer):  # type: ignore[misc]
        """Fills the shared buffer with the first positions that causality allows, -1 behind them."""

        def forward_native(self, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
            """Fill the buffer; a dummy run leaves it alone."""
            metadata = get_forward_context().attn_metadata
            if not isinstance(metadata, dict):
                return self.topk_indices_buffer
            record = next(record for record in metadata.values() if hasattr(record, "topk_tokens"))
            tokens = record.num_actual_tokens
            lens = record.query_start_loc.diff()
            owners = torch.repeat_interleave(torch.arange(len(lens)), lens)
            ends = record.seq_lens[owners] - record.query_start_loc[owners + 1]
            positions = torch.arange(tokens) + ends
            columns = torch.arange(self.topk_indices_buffer.shape[1])
            chosen = torch.where(columns <= positions[:, None], columns, -1)
            self.topk_indices_buffer[:tokens] = chosen.to(self.topk_indices_buffer.dtype)
            return self.topk_indices_buffer

        forward_cpu = forward_native
        forward_cuda = forward_native

    SparseAttnIndexer.register_oot(LeadingPositions, name="SparseAttnIndexer")
