"""Sparse attention over ragged slots, in one pass or as partial results of splits that a second kernel merges.

Scores are kept in base 2, so that the exponential is one instruction; offsets into the cache are 64-bit.
"""

# The compiler is Any to mypy, which therefore takes its decorator for untyped.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1.0e30)
"""Running maximum before any entry: below every score, and finite, so that no difference of infinities arises."""

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def load_rows(
    base: tl.tensor, live: tl.tensor, first: tl.constexpr, size: tl.constexpr, padded: tl.constexpr
) -> tl.tensor:
    """Load columns ``first`` to ``first + size`` of the rows at ``base``, zeros where a row or column is not live.

    Without ``live`` every row is loaded.
    """
    column = tl.arange(0, padded)
    source = base[:, None] + (first + column)[None, :]
    if size < padded:
        inside = (column < size)[None, :] if live is None else live[:, None] & (column < size)[None, :]
        rows = tl.load(source, mask=inside, other=0.0)
    elif live is None:
        rows = tl.load(source)
    else:
        rows = tl.load(source, mask=live[:, None], other=0.0)
    return rows


@triton.jit
def find_entries(
    starts: tl.tensor,
    ends: tl.tensor,
    row: tl.tensor,
    split: tl.tensor,
    splits: tl.tensor,
    partial: tl.constexpr,
    block_n: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return where a row's entries begin and end, or those of one split of them."""
    low = tl.load(starts + row)
    high = tl.load(ends + row)
    if partial:
        share = tl.cdiv(tl.cdiv(high - low, splits), block_n) * block_n
        low += split * share
        high = tl.minimum(low + share, high)
    return low, high


@triton.jit
def pack_live(indptr: tl.tensor, indices: tl.tensor, packed: tl.tensor, ends: tl.tensor, block: tl.constexpr) -> None:
    """Write the entries of one row that are not -1 from its start on, and where they end."""
    row = tl.program_id(0)
    low = tl.load(indptr + row)
    high = tl.load(indptr + row + 1)
    for first in tl.range(low, high, block):
        at = first + tl.arange(0, block)
        slot = tl.load(indices + at, mask=at < high, other=-1)
        live = (slot >= 0).to(tl.int32)
        tl.store(packed + low + tl.cumsum(live, 0) - live, slot, mask=live > 0)
        low += tl.sum(live, 0)
    tl.store(ends + row, low)


@triton.jit
def factor(scale: tl.tensor) -> tl.tensor:
    """Return the value behind a pointer to a scale, or 1 without one."""
    return 1.0 if scale is None else tl.load(scale).to(tl.float32)


@triton.jit
def sink_mass(sink: tl.tensor, peak: tl.tensor) -> tl.tensor:
    """Return what a sink adds to the softmax's sum; bounded, where it alone decides, by a finite number."""
    return tl.exp2(tl.minimum(sink.to(tl.float32) * LOG2_E - peak, 126.0))


# What varies from batch to batch is not specialised: no step compiles.
@triton.jit(do_not_specialize=["splits"])
def attend(
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
    kv_row: tl.tensor,
    latent_dim: tl.constexpr,
    latent_padded: tl.constexpr,
    rope_dim: tl.constexpr,
    rope_padded: tl.constexpr,
    dot_type: tl.constexpr,
    partial: tl.constexpr,
    block_h: tl.constexpr,
    block_n: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    """Attend from one block of heads of a row to one split of its entries.

    When ``partial``, ``out`` and ``lse`` are scratch of [rows * splits, heads, latent] and [rows * splits, heads];
    the partial LSE is in base 2. Programs of one row stand side by side, so that its entries are read from L2.
    """
    program = tl.program_id(0)
    part = program // head_blocks
    row = (part // splits if partial else part).to(tl.int64)
    head = (program % head_blocks) * block_h + tl.arange(0, block_h)
    known = head < num_heads
    low, high = find_entries(starts, ends, row, part % splits, splits, partial, block_n)
    entry = tl.arange(0, block_n)
    slot = tl.load(indices + low + entry, mask=low + entry < high, other=-1)
    query = q + row * q_row + head * q_head
    q_latent = load_rows(query, known, 0, latent_dim, latent_padded).to(dot_type)
    if rope_dim > 0:
        q_rope = load_rows(query, known, latent_dim, rope_dim, rope_padded).to(dot_type)
    value_scale = factor(kv_scale)
    scale = softmax_scale * factor(q_scale) * value_scale * LOG2_E
    peak = tl.full([block_h], LOWEST, tl.float32)
    total = tl.zeros([block_h], tl.float32)
    value = tl.zeros([block_h, latent_padded], tl.float32)
    for first in tl.range(low, high, block_n, num_stages=stages):
        live = slot >= 0
        base = kv + slot.to(tl.int64) * kv_row
        latent = load_rows(base, live, 0, latent_dim, latent_padded).to(dot_type)
        scores = tl.dot(q_latent, tl.trans(latent), input_precision="ieee") * scale
        if rope_dim > 0:
            rope = load_rows(base, live, latent_dim, rope_dim, rope_padded).to(dot_type)
            scores += tl.dot(q_rope, tl.trans(rope), input_precision="ieee") * scale
        # The next slots travel while this block is computed.
        ahead = first + block_n + entry
        slot = tl.load(indices + ahead, mask=ahead < high, other=-1)
        scores = tl.where(live[None, :], scores, float("-inf"))
        highest = tl.maximum(peak, tl.max(scores, 1))
        weight = tl.exp2(scores - highest[:, None])
        shrink = tl.exp2(peak - highest)
        total = total * shrink + tl.sum(weight, 1)
        value = tl.dot(weight.to(dot_type), latent, value * shrink[:, None], input_precision="ieee")
        peak = highest
    bound = tl.where(total > 0, peak + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf"))
    if partial:
        row = part.to(tl.int64)
    elif sinks is not None:
        sink = tl.load(sinks + head, mask=known, other=0.0)
        total += sink_mass(sink, peak)
    value = value * (value_scale / tl.where(total > 0, total, 1.0))[:, None]
    column = tl.arange(0, latent_padded)
    target = out + row * out_row + head[:, None] * out_head + column[None, :]
    tl.store(target, value.to(out.dtype.element_ty), mask=known[:, None] & (column < latent_dim)[None, :])
    if lse is not None:
        tl.store(lse + row * lse_row + head, bound if partial else bound * LN_2, mask=known)


@triton.jit(do_not_specialize=["splits"])
def merge(
    part: tl.tensor,
    part_lse: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    sinks: tl.tensor,
    num_heads: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    lse_row: tl.tensor,
    splits: tl.tensor,
    latent_dim: tl.constexpr,
    splits_padded: tl.constexpr,
    block_v: tl.constexpr,
) -> None:
    """Merge the splits of one row and head, one block of values at a time. A split without an entry is not read."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.arange(0, splits_padded)
    column = tl.program_id(2) * block_v + tl.arange(0, block_v)
    source = (row * splits + split) * num_heads + head
    bound = tl.load(part_lse + source, mask=split < splits, other=float("-inf"))
    peak = tl.maximum(tl.max(bound, 0), LOWEST)
    weight = tl.exp2(bound - peak)
    total = tl.sum(weight, 0)
    read = (bound > float("-inf"))[:, None] & (column < latent_dim)[None, :]
    values = tl.load(part + source[:, None] * latent_dim + column[None, :], mask=read, other=0.0)
    value = tl.sum(values * weight[:, None], 0)
    if lse is not None:
        natural = tl.where(total > 0, (peak + tl.log2(tl.where(total > 0, total, 1.0))) * LN_2, float("-inf"))
        tl.store(lse + row * lse_row + head, natural, mask=tl.program_id(2) == 0)
    if sinks is not None:
        total += sink_mass(tl.load(sinks + head), peak)
    value = value / tl.where(total > 0, total, 1.0)
    tl.store(out + row * out_row + head * out_head + column, value.to(out.dtype.element_ty), mask=column < latent_dim)
