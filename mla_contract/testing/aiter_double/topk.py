"""Top-k of rows: absolute columns, unsorted, ties as they fall, rows of exactly k elements in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from mla_contract.testing.aiter_double.chip import Arguments, Chip, require

FIXED_TOPK = 2048


def top_k_per_row_prefill(chip: Chip, a: Arguments) -> None:
    """Select in ``[rowStarts, rowEnds)``; before 0.1.14 long rows lost the start."""
    starts, ends = a["rowStarts"].tolist(), a["rowEnds"].tolist()
    _select(a, starts, ends, lost_start=not chip.since("0.1.14"))


def top_k_per_row_decode(chip: Chip, a: Arguments) -> None:
    """Select in the first ``seqLens[r // next_n] - next_n + r % next_n + 1`` columns."""
    lens, next_n = a["seqLens"].tolist(), a["next_n"]
    ends = [lens[row // next_n] - next_n + row % next_n + 1 for row in range(a["numRows"])]
    _select(a, [0] * len(ends), ends)


def _select(a: Arguments, starts: list[int], ends: list[int], lost_start: bool = False) -> None:
    """Write the selection of every row."""
    logits, k, stable = a["logits"], a.get("k", FIXED_TOPK), a.get("stable", False)
    require(logits.dtype is torch.float32 and a["indices"].dtype is torch.int32, "read without a check")
    rows = a["numRows"]
    indices, values = a["indices"], a.get("values")
    require(indices.numel() >= rows * k, "indices are addressed in rows of k")
    target = indices.as_strided((rows, k), (k, 1))
    scores = logits.as_strided((rows, logits.shape[1]), (a["stride0"], 1))
    for row in range(rows):
        start, end = starts[row], ends[row]
        target[row] = -1
        if end - start <= k:
            target[row, : max(end - start, 0)] = torch.arange(start, max(start, end), dtype=torch.int32)
            continue
        columns = _best(scores[row, start:end], k, stable) + (0 if lost_start else start)
        target[row] = columns.int()
        if values is not None:
            values.as_strided((rows, k), (k, 1))[row] = scores[row, columns]


def _best(scores: Tensor, k: int, stable: bool) -> Tensor:
    """Return the best columns: by position when stable, else by value and with ties to the larger position."""
    if stable:
        return torch.argsort(scores, descending=True, stable=True)[:k].sort().values
    flipped = torch.argsort(scores.flip(0), descending=True, stable=True)[:k]
    return len(scores) - 1 - flipped
