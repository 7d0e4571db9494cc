"""Top-k of rows by radix selection: four histograms find the k-th largest value, one more pass collects.

Positions come in ascending order and ties go to the smaller position, so the selection is always stable.
"""

# The compiler is Any to mypy, which therefore takes its decorator for untyped.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sortable(value: tl.tensor) -> tl.tensor:
    """Return unsigned keys in the order of the values; NaN ranks as +inf, and the two zeros are equal."""
    value = tl.where(value != value, float("inf"), value)
    value = tl.where(value == 0.0, 0.0, value)
    bits = value.to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def load_part(
    source: tl.tensor, listed: tl.tensor, at: tl.tensor, inside: tl.tensor, shift: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Return positions and sortable keys of one block: of a segment, or of the positions that are listed."""
    place = shift + at if listed is None else tl.load(listed + at, mask=inside, other=0)
    return place, sortable(tl.load(source + place, mask=inside, other=0.0))


@triton.jit(do_not_specialize=["num_columns", "segment", "segments"])
def topk_rows(
    logits: tl.tensor,
    starts: tl.tensor,
    ends: tl.tensor,
    listed: tl.tensor,
    out: tl.tensor,
    num_columns: tl.tensor,
    logits_row: tl.tensor,
    segment: tl.tensor,
    segments: tl.tensor,
    topk: tl.constexpr,
    topk_padded: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Select from one segment of one row's window, or, when ``listed``, from what its segments have selected.

    All segments but the last of a window are full, and have selected ``topk``: the selected stand without a gap.
    """
    row = tl.program_id(0).to(tl.int64)
    low = 0
    if starts is not None:
        low = tl.maximum(tl.load(starts + row), 0)
    size = tl.maximum(tl.minimum(tl.load(ends + row), num_columns) - low, 0)
    source = logits + row * logits_row + low
    shift = tl.program_id(1) * segment
    target = out + (row * tl.num_programs(1) + tl.program_id(1)) * topk
    if listed is None:
        size = tl.minimum(size - shift, segment)
    else:
        listed += row * segments * topk
        size = size // segment * topk + tl.minimum(size % segment, topk)
    if size <= topk:
        rank = tl.arange(0, topk_padded)
        place = shift + rank if listed is None else tl.load(listed + rank, mask=rank < size, other=-1)
        tl.store(target + rank, tl.where(rank < size, place, -1), mask=rank < topk)
    else:
        lane = tl.arange(0, block)
        digit = tl.arange(0, 256)
        prefix = tl.full([], 0, tl.uint32)
        fixed = tl.full([], 0, tl.uint32)
        left = tl.full([], topk, tl.int32)
        for step in tl.static_range(4):
            bit = 24 - 8 * step
            counts = tl.zeros([256], tl.int32)
            for first in tl.range(0, size, block):
                inside = first + lane < size
                _, key = load_part(source, listed, first + lane, inside, shift)
                inside = inside & ((key & fixed) == prefix)
                counts += tl.histogram(((key >> bit) & 255).to(tl.int32), 256, mask=inside)
            reach = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts
            chosen = tl.sum((reach >= left).to(tl.int32), 0) - 1
            left -= tl.sum(tl.where(digit > chosen, counts, 0), 0)
            prefix = prefix | (chosen.to(tl.uint32) << bit)
            fixed = fixed | (tl.full([], 255, tl.uint32) << bit)
        taken = tl.full([], 0, tl.int32)
        for first in tl.range(0, size, block):
            inside = first + lane < size
            place, key = load_part(source, listed, first + lane, inside, shift)
            tie = (inside & (key == prefix)).to(tl.int32)
            tied = tl.cumsum(tie, 0)
            take = ((inside & (key > prefix)) | ((tie > 0) & (tied <= left))).to(tl.int32)
            tl.store(target + taken + tl.cumsum(take, 0) - take, place, mask=take > 0)
            taken += tl.sum(take, 0)
            left -= tl.minimum(tl.sum(tie, 0), left)
