"""Batches for kernel tests, and a naive dense-masked statement of what the kernels compute."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

torch.set_num_threads(1)

TOPK = 32


@dataclass(frozen=True)
class Case:
    """Requests with paged caches: ``lens[r]`` tokens, of which the last ``next_n`` are queries."""

    lens: tuple[int, ...]
    block_size: int
    next_n: int = 1

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache, one unused."""
        return sum(-(-length // self.block_size) for length in self.lens) + 1

    def block_table(self) -> Tensor:
        """Return scattered block ids; columns behind the last block hold a block that is not the request's."""
        width = max(1, max(-(-length // self.block_size) for length in self.lens))
        ids = torch.randperm(self.num_blocks - 1, generator=torch.Generator().manual_seed(3)) + 1
        table, used = torch.zeros(len(self.lens), width, dtype=torch.int32), 0
        for req, length in enumerate(self.lens):
            count = -(-length // self.block_size)
            table[req, :count] = ids[used : used + count]
            used += count
        return table

    def slot_mapping(self) -> Tensor:
        """Return the slot of every token of every request, request after request."""
        table = self.block_table()
        slots = [
            int(table[req, pos // self.block_size]) * self.block_size + pos % self.block_size
            for req, length in enumerate(self.lens)
            for pos in range(length)
        ]
        return torch.tensor(slots, dtype=torch.int64)


def ragged(lens: list[int], num_slots: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return offsets and random slots of rows with these lengths."""
    generator = torch.Generator().manual_seed(seed)
    indptr = torch.tensor([0, *lens]).cumsum(0).int()
    indices = torch.randint(num_slots, (int(indptr[-1]),), generator=generator, dtype=torch.int32)
    return indptr, indices


def naive_attention(
    q: Tensor,
    kv: Tensor,
    indptr: Tensor,
    indices: Tensor,
    v_dim: int,
    scale: float,
    sinks: Tensor | None = None,
    kv_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return output and LSE in float64, by a dense mask that counts how often each row selects each slot."""
    counts = torch.zeros(len(q), len(kv), dtype=torch.float64)
    for row in range(len(q)):
        for slot in indices[int(indptr[row]) : int(indptr[row + 1])].tolist():
            if slot >= 0:
                counts[row, slot] += 1
    keys = kv.double()
    scores = torch.einsum("thd,sd->ths", q.double(), keys) * scale
    mass = torch.exp(scores) * counts[:, None]
    total = mass.sum(-1)
    lse = torch.log(total)
    if sinks is not None:
        total = total + torch.exp(sinks.double())
    weights = torch.where(total[..., None] > 0, mass / total[..., None].clamp_min(1e-300), 0.0)
    return torch.einsum("ths,sd->thd", weights, keys[:, :v_dim]) * kv_scale, lse


def naive_logits(q: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
    """Return the logits of all pairs in float64."""
    dots = torch.einsum("mhd,nd->mhn", q.double(), keys.double()).relu()
    return (dots * weights.double()[..., None]).sum(1)


def naive_topk(row: list[float], topk: int) -> set[int]:
    """Return the positions of the largest values, ties to the smaller position."""
    return set(sorted(range(len(row)), key=lambda pos: (-row[pos], pos))[:topk])
