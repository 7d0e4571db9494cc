"""Decode rows as the installed engine's indexer builder lays them out, by its own methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mla_contract.adapters.decode import DecodePlan

ROWS = 4096


@dataclass(frozen=True)
class EngineRows:
    """What the engine's builder makes: lengths, requests of rows (-1 on padding), packing, lengths over all ranks."""

    seq_lens: np.ndarray[Any, Any]
    requests: np.ndarray[Any, Any]
    requires_padding: bool
    global_seq_lens: np.ndarray[Any, Any]


class EngineDecodes:
    """The buffers that the builder's methods read; its configuration speculates without adaptive verification."""

    speculative_config = None
    supports_varlen = True
    """So that equal lengths take the general way too: the kernel for them alone needs a device."""

    def __init__(self, next_n: int) -> None:
        import torch

        self.vllm_config, self.next_n = self, next_n
        self.offsets_buffer = torch.arange(next_n, dtype=torch.int32)
        self.arange_buffer = torch.arange(ROWS, dtype=torch.int32)
        self.decode_seq_lens_buffer = torch.full((ROWS,), 99, dtype=torch.int32)
        self.global_decode_seq_lens_buffer = torch.full((ROWS,), 99, dtype=torch.int32)
        self.decode_lens_buffer = torch.zeros(ROWS, dtype=torch.int32)
        self.expanded_block_table_buffer = torch.full((ROWS, 1), 99, dtype=torch.int32)

    def rows(self, start_loc: Any, seq_lens: Any, num_decode_tokens: int, *, native: bool) -> EngineRows:
        """Return the rows of a batch's decodes.

        Args:
            start_loc: [num_decodes+1] int32 tensor.
            seq_lens: [num_decodes] int32 tensor.
            num_decode_tokens: Tokens of the decodes, padding included.
            native: Whether a row is a request.
        """
        import torch
        from vllm.v1.attention.backends.mla.indexer import DeepseekV32IndexerMetadataBuilder as Builder

        lens, count = torch.diff(start_loc), len(seq_lens)
        longest = int(lens.max())
        table = torch.arange(1, count + 1, dtype=torch.int32)[:, None]
        whole: Any = self
        over_ranks = Builder._prepare_global_decode_seq_lens(
            whole, seq_lens, lens, lens, start_loc[:-1], num_decode_tokens, native, longest
        )
        own, blocks, _, _, packed = Builder._prepare_decode_tensors(
            whole,
            seq_lens,
            table,
            lens,
            lens,
            start_loc[:-1],
            count,
            num_decode_tokens,
            native,
            self.next_n,
            longest,
        )
        assert over_ranks is not None
        requests = blocks[:, 0].numpy() - 1
        if native:
            requests = np.where(lens.numpy() > 0, requests, -1)
        return EngineRows(own.numpy().copy(), requests.copy(), packed, over_ranks.numpy().copy())


def decode_differences(ours: DecodePlan, theirs: EngineRows) -> list[str]:
    """Return the fields that differ; a column of one length is left out by the engine where no query is longer."""
    lens = ours.seq_lens[:, 0] if ours.seq_lens.ndim > theirs.seq_lens.ndim else ours.seq_lens
    found = [] if np.array_equal(lens, theirs.seq_lens) else ["seq_lens"]
    if not np.array_equal(ours.row_requests, theirs.requests):
        found.append("row_requests")
    if ours.requires_padding != theirs.requires_padding:
        found.append("requires_padding")
    stated = ours.global_seq_lens
    if stated is not None and not np.array_equal(stated, theirs.global_seq_lens):
        found.append("global_seq_lens")
    return found
