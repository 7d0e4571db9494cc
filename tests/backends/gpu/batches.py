"""Batches whose device arrays never move, as an engine with captured graphs has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mla_contract.testing.records import PlainBatch

BLOCK = 64


class StaticBatch:
    """The engine's persistent arrays for a number of requests; each step is copied into them."""

    def __init__(self, num_reqs: int, num_tokens: int, longest: int, device: torch.device) -> None:
        """Allocate them; request r owns the blocks from ``r * columns + 1`` on."""
        columns = -(-longest // BLOCK)
        self.table = (1 + torch.arange(num_reqs * columns, dtype=torch.int32, device=device)).view(num_reqs, columns)
        self.num_blocks = num_reqs * columns + 1
        self._start_loc = torch.zeros(num_reqs + 1, dtype=torch.int32, device=device)
        self._seq_lens = torch.zeros(num_reqs, dtype=torch.int32, device=device)
        self._slots = torch.zeros(num_tokens, dtype=torch.int64, device=device)

    def step(self, query_lens: Sequence[int], seq_lens: Sequence[int]) -> PlainBatch:
        """Return the batch of these lengths."""
        start_loc = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
        owner = np.repeat(np.arange(len(query_lens)), query_lens)
        rest = np.asarray(seq_lens) - np.asarray(query_lens)
        position = np.arange(start_loc[-1]) - start_loc[owner] + rest[owner]
        slots = (owner * self.table.shape[1] + 1) * BLOCK + position
        self._start_loc[: len(start_loc)].copy_(torch.from_numpy(start_loc))
        self._seq_lens[: len(seq_lens)].copy_(torch.tensor(seq_lens, dtype=torch.int32))
        self._slots[: len(slots)].copy_(torch.from_numpy(slots.astype(np.int64)))
        return PlainBatch(
            query_start_loc=self._start_loc[: len(start_loc)],
            query_start_loc_cpu=torch.from_numpy(start_loc),
            seq_lens=self._seq_lens[: len(seq_lens)],
            num_reqs=len(seq_lens),
            num_actual_tokens=int(start_loc[-1]),
            max_query_len=max(query_lens),
            max_seq_len=max(seq_lens),
            block_table_tensor=self.table[: len(seq_lens)],
            slot_mapping=self._slots[: len(slots)],
            seq_lens_cpu_upper_bound=torch.tensor(seq_lens, dtype=torch.int32),
        )


def lens_of(num_reqs: int, seed: int, *, mixed: bool, longest: int) -> tuple[list[int], list[int]]:
    """Return query and sequence lengths: decodes, the last eighth of them prefills when ``mixed``."""
    rng = np.random.default_rng(seed)
    queries = np.ones(num_reqs, np.int64)
    if mixed:
        queries[num_reqs - max(1, num_reqs // 8) :] = rng.integers(16, 64, max(1, num_reqs // 8))
    context = rng.integers(1, longest - 64, num_reqs)
    return queries.tolist(), (queries + context).tolist()
