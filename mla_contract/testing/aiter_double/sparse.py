"""The Triton kernel over global slots: masks -1, writes multiples of 16 heads only."""

from __future__ import annotations

import torch

from mla_contract.testing.aiter_double.chip import POISON, Arguments, Chip, require


def unified_attention_sparse_mla(chip: Chip, a: Arguments) -> None:
    """Attend in place into ``out``; a row without any slot becomes NaN, heads behind the last 16 stay unwritten."""
    q, kv, out, rank = a["q"], a["kv"], a["out"], a["kv_lora_rank"]
    block_size, heads = kv.shape[1], q.shape[1] // 16 * 16
    require(kv.dim() == 4 and block_size >= 16 and block_size & (block_size - 1) == 0, "block size")
    require(a["topk_indices"].is_contiguous(), "topk_indices must be contiguous")
    cache = kv.reshape(-1, kv.shape[-1])
    out.fill_(POISON)
    for row in range(len(q)):
        slots = a["topk_indices"][row]
        rows = cache[slots[slots != -1].long()].float()
        if len(rows):
            weights = torch.softmax(q[row, :heads].float() @ rows.T * a["softmax_scale"], dim=1)
            out[row, :heads] = (weights @ rows[:, :rank]).to(out.dtype)
