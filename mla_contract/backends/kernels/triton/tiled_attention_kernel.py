"""Sparse attention whose latent part lies in four tiles, for GPUs whose matrix products belong to groups of warps.

One program of eight warps fills a multiprocessor of such a GPU, so nothing runs beside it and what its warps do one
after the other adds up. This kernel differs from ``attend`` in what it lets the compiler overlap, or leave out:

- A thread loads parts of few rows where a row of a tile is short, and so computes few addresses.
- Two products start before the next block's loads and are awaited after them; the loads are issued meanwhile.
- The sum of a row is kept for each half of a block, so that groups of warps exchange maxima only.
- No entry is -1, so loads have no mask: behind the last entry, they load it again.
"""

# The compiler is Any to mypy, which therefore takes its decorator for untyped.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from mla_contract.backends.kernels.triton.attention_kernels import (
    LN_2,
    LOG2_E,
    LOWEST,
    factor,
    find_entries,
    load_rows,
    sink_mass,
)


@triton.jit
def weigh(
    scores: tl.tensor, peak: tl.tensor, taken: tl.tensor, dot_type: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return maximum, weights, weights as an operand, and what older sums shrink by; ``taken`` is always true.

    Behind a branch the compiler does not see that one product feeds another. It then spreads the first over all
    warps, where it would else let groups of warps compute the same scores.
    """
    highest = tl.maximum(peak, tl.max(scores, 1))
    weight = tl.exp2(scores - highest[:, None])
    if taken:
        shrink = tl.exp2(peak - highest)
        packed = weight.to(dot_type)
    else:
        shrink = peak
        packed = tl.broadcast_to(peak[:, None], scores.shape).to(dot_type)
    return highest, weight, packed, shrink


# What varies from batch to batch is not specialised: no step compiles.
@triton.jit(do_not_specialize=["splits"])
def attend_tiled(
    q: tl.tensor,
    kv: tl.tensor,
    starts: tl.tensor,
    ends: tl.tensor,
    indices: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    sinks: tl.tensor,
    q_scale: tl.tensor,
    kv_scale: tl.tensor,
    softmax_scale: tl.tensor,
    num_heads: tl.tensor,
    q_row: tl.tensor,
    q_head: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    lse_row: tl.tensor,
    head_blocks: tl.tensor,
    splits: tl.tensor,
    kv_row: tl.constexpr,
    latent_dim: tl.constexpr,
    rope_dim: tl.constexpr,
    rope_padded: tl.constexpr,
    dot_type: tl.constexpr,
    partial: tl.constexpr,
    block_h: tl.constexpr,
    block_n: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    """Attend as ``attend`` does. ``latent_dim`` is a power of two, there is a rope part, and no entry is -1."""
    tile: tl.constexpr = latent_dim // 4
    program = tl.program_id(0)
    part = program // head_blocks
    row = (part // splits if partial else part).to(tl.int64)
    head = (program % head_blocks) * block_h + tl.arange(0, block_h)
    known = head < num_heads
    query = q + row * q_row + head * q_head
    q0 = load_rows(query, known, 0, tile, tile).to(dot_type)
    q1 = load_rows(query, known, tile, tile, tile).to(dot_type)
    q2 = load_rows(query, known, 2 * tile, tile, tile).to(dot_type)
    q3 = load_rows(query, known, 3 * tile, tile, tile).to(dot_type)
    q_rope = load_rows(query, known, latent_dim, rope_dim, rope_padded).to(dot_type)
    low, high = find_entries(starts, ends, row, part % splits, splits, partial, block_n)
    entry = tl.arange(0, block_n)
    slot = tl.load(indices + tl.minimum(low + entry, high - 1), mask=entry * 0 + low < high, other=0)
    value_scale = factor(kv_scale)
    scale = softmax_scale * factor(q_scale) * value_scale * LOG2_E
    peak = tl.full([block_h], LOWEST, tl.float32)
    total = tl.zeros([block_h, 2], tl.float32)
    v0 = tl.zeros([block_h, tile], tl.float32)
    v1 = tl.zeros([block_h, tile], tl.float32)
    v2 = tl.zeros([block_h, tile], tl.float32)
    v3 = tl.zeros([block_h, tile], tl.float32)
    early3 = tl.zeros([block_h, block_n], tl.float32)
    early_rope = tl.zeros([block_h, block_n], tl.float32)
    for first in tl.range(low, high, block_n, num_stages=stages):
        base = kv + slot.to(tl.int64) * kv_row
        slot = tl.load(indices + tl.minimum(first + block_n + entry, high - 1))
        k0 = load_rows(base, None, 0, tile, tile).to(dot_type)
        k1 = load_rows(base, None, tile, tile, tile).to(dot_type)
        k2 = load_rows(base, None, 2 * tile, tile, tile).to(dot_type)
        k3 = load_rows(base, None, 3 * tile, tile, tile).to(dot_type)
        k_rope = load_rows(base, None, latent_dim, rope_dim, rope_padded).to(dot_type)
        # Transposed here, the tiles are awaited before the next ones are loaded, which then need no third buffer.
        k0_t, k1_t, k2_t = tl.trans(k0), tl.trans(k1), tl.trans(k2)
        early_rope = tl.dot(q_rope, tl.trans(k_rope), input_precision="ieee")
        early3 = tl.dot(q3, tl.trans(k3), input_precision="ieee")
        # Always taken. What is behind this branch comes after the next block's loads.
        if first < low + high:
            # One sum of products would be one chain of products, which ``weigh`` says what follows of.
            scores = tl.dot(q0, k0_t, input_precision="ieee") * scale
            scores += tl.dot(q1, k1_t, input_precision="ieee") * scale
            scores += tl.dot(q2, k2_t, input_precision="ieee") * scale
            scores += (early_rope + early3) * scale
            if first + block_n > high:
                scores = tl.where((first + entry < high)[None, :], scores, float("-inf"))
            peak, weight, packed, shrink = weigh(scores, peak, low < high, dot_type)
            total = total * shrink[:, None] + tl.sum(tl.reshape(weight, [block_h, 2, block_n // 2]), 2)
            v0 = tl.dot(packed, k0, v0 * shrink[:, None], input_precision="ieee")
            v1 = tl.dot(packed, k1, v1 * shrink[:, None], input_precision="ieee")
            v2 = tl.dot(packed, k2, v2 * shrink[:, None], input_precision="ieee")
            v3 = tl.dot(packed, k3, v3 * shrink[:, None], input_precision="ieee")
    sums = tl.sum(total, 1)
    bound = tl.where(sums > 0, peak + tl.log2(tl.where(sums > 0, sums, 1.0)), float("-inf"))
    if partial:
        row = part.to(tl.int64)
    elif sinks is not None:
        sums += sink_mass(tl.load(sinks + head, mask=known, other=0.0), peak)
    share = value_scale / tl.where(sums > 0, sums, 1.0)
    if low > high:
        # Only a split behind the row's end comes here, with zeros. The compiler awaits late what outlives the loop.
        share += tl.max(early_rope, 1) + tl.max(early3, 1)
    target = out + row * out_row + head[:, None] * out_head + tl.arange(0, tile)[None, :]
    kind = out.dtype.element_ty
    tl.store(target, (v0 * share[:, None]).to(kind), mask=known[:, None])
    tl.store(target + tile, (v1 * share[:, None]).to(kind), mask=known[:, None])
    tl.store(target + 2 * tile, (v2 * share[:, None]).to(kind), mask=known[:, None])
    tl.store(target + 3 * tile, (v3 * share[:, None]).to(kind), mask=known[:, None])
    if lse is not None:
        tl.store(lse + row * lse_row + head, bound if partial else bound * LN_2, mask=known)
