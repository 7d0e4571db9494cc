"""Logits of the lightning indexer: a sum over heads of weighted, rectified dot products.

Each element depends on its own query and key alone: the arithmetic is the same however a prompt is cut into
chunks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mla_contract.backends.kernels.reference.pages import read_keys, table_slots
from mla_contract.contract.schema.provider import ChunkLogits, PagedLogits, padded_columns

ROW_TILE, COLUMN_TILE = 128, 4096
"""Pairs that are scored together; small enough for a cache."""

SMALLEST_ROWS, SMALLEST_COLUMNS = 64, 256
"""Tiles are padded with zeros to multiples of these, so that no other matrix kernel is chosen for the last ones."""


def score(q: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """Return the logits of all pairs of one tile.

    Args:
        q: Queries of any float type, [m, heads, d].
        keys: Dequantised keys, float32, [n, d].
        weights: float32, [m, heads].

    Returns:
        float32, [m, n].
    """
    rows, columns = q.shape[0], keys.shape[0]
    q = torch.nn.functional.pad(q.float(), (0, 0, 0, 0, 0, -rows % SMALLEST_ROWS))
    weights = torch.nn.functional.pad(weights.float(), (0, 0, 0, -rows % SMALLEST_ROWS))
    keys = torch.nn.functional.pad(keys, (0, 0, 0, -columns % SMALLEST_COLUMNS))
    total = torch.mm(q[:, 0], keys.t()).relu_().mul_(weights[:, 0, None])
    part = torch.empty_like(total) if q.shape[1] > 1 else total
    for head in range(1, q.shape[1]):
        torch.mm(q[:, head], keys.t(), out=part)
        total += part.relu_().mul_(weights[:, head, None])
    return total[:rows, :columns]


def chunk_logits(inputs: ChunkLogits) -> Tensor:
    """Return the chunk's logits, -inf outside the windows. Sync: reads device memory."""
    num_rows, num_keys = inputs.q.shape[0], inputs.k.shape[0]
    keys = inputs.k.float()
    if inputs.k_scale is not None:
        keys = keys * inputs.k_scale.reshape(-1, 1)
    logits = torch.full((num_rows, padded_columns(num_keys)), -torch.inf, device=keys.device)[:, :num_keys]
    for first in range(0, num_rows, ROW_TILE):
        rows = slice(first, first + ROW_TILE)
        starts, ends = inputs.starts[rows].clamp(min=0), inputs.ends[rows].clamp(max=num_keys)
        covered = (int(starts.max()), int(ends.min()))
        for low in range(int(starts.min()) // COLUMN_TILE * COLUMN_TILE, int(ends.max()), COLUMN_TILE):
            high = min(low + COLUMN_TILE, num_keys)
            scores = score(inputs.q[rows], keys[low:high], inputs.weights[rows])
            if not covered[0] <= low < high <= covered[1]:
                column = torch.arange(low, high, device=keys.device)
                scores = scores.masked_fill((column < starts[:, None]) | (column >= ends[:, None]), -torch.inf)
            logits[rows, low:high] = scores
    return logits


def paged_logits(inputs: PagedLogits) -> None:
    """Write the logits of every decode row; columns behind its keys become -inf. Sync: reads device memory."""
    next_n = inputs.q.shape[1]
    inputs.out.fill_(-torch.inf)
    for req, length in enumerate(inputs.context_lens.reshape(-1).tolist()):
        if length <= 0:
            continue
        rows = slice(req * next_n, (req + 1) * next_n)
        slots = table_slots(inputs.block_table[req], length, inputs.cache.shape[1])
        values, scales = read_keys(inputs.cache, slots, inputs.format)
        group = inputs.format.group
        keys = values.float()
        if scales is not None:
            keys = keys * scales.repeat_interleave(group, dim=-1)[:, : keys.shape[1]]
        seen = length - next_n + 1 + torch.arange(next_n, device=keys.device)
        hidden = torch.arange(length, device=keys.device) >= seen[:, None]
        scores = score(inputs.q[req], keys, inputs.weights[rows])
        inputs.out[rows, :length] = scores.masked_fill_(hidden, -torch.inf)
