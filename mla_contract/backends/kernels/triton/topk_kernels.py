"""Top-k of rows by radix selection: four histograms find the k-th largest value, one more pass collects.

One program does it all for a row, or many programs share it: then each histogram, and the collecting, is a launch.
Positions come in ascending order and ties go to the smaller position, so the selection is always stable.
"""

# The compiler is Any to mypy, which therefore takes its decorator for untyped.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

ABOVE, PREFIX, TABLE = tl.constexpr(256), tl.constexpr(257), tl.constexpr(260)
"""Table of one part of a shared row: for each digit how many of the part's keys are at least prefix and digit, then
how many are above the prefix, and the prefix. Its size is a multiple of 16 bytes."""

TABLES = tl.constexpr(32)
"""Tables that are read at once."""


@triton.jit
def sortable(value: tl.tensor) -> tl.tensor:
    """Return unsigned keys in the order of the values; NaN ranks as +inf, and the two zeros are equal."""
    value = tl.where(value != value, float("inf"), value)
    value = tl.where(value == 0.0, 0.0, value)
    bits = value.to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def find_window(
    starts: tl.tensor, ends: tl.tensor, row: tl.tensor, num_columns: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Return the first column of a row's window and how many columns it has."""
    low = tl.full([], 0, tl.int32)
    if starts is not None:
        low = tl.maximum(tl.load(starts + row), 0)
    return low, tl.maximum(tl.minimum(tl.load(ends + row), num_columns) - low, 0)


@triton.jit
def find_share(size: tl.tensor, block: tl.constexpr) -> tl.tensor:
    """Return the columns of one part of a window; the last of its parts may be short, and others empty."""
    return tl.cdiv(tl.cdiv(size, tl.num_programs(1)), block) * block


@triton.jit
def count_reach(
    source: tl.tensor, first: tl.tensor, last: tl.tensor, prefix: tl.tensor, bit: tl.tensor, block: tl.constexpr
) -> tl.tensor:
    """Return, for each digit at ``bit``, how many keys begin with the prefix and go on with it or a larger one."""
    lane = tl.arange(0, block)
    counts = tl.zeros([256], tl.int32)
    for start in tl.range(first, last, block):
        inside = start + lane < last
        key = sortable(tl.load(source + start + lane, mask=inside, other=0.0))
        digit = (key ^ prefix) >> bit
        counts += tl.histogram(digit.to(tl.int32), 256, mask=inside & (digit < 256))
    return tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts


@triton.jit
def write_selected(
    source: tl.tensor,
    target: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    bound: tl.tensor,
    left: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Write where keys are above the bound, and the first ``left`` places of those that are equal to it."""
    lane = tl.arange(0, block)
    for start in tl.range(first, last, block):
        inside = start + lane < last
        key = sortable(tl.load(source + start + lane, mask=inside, other=0.0))
        above = inside & (key > bound)
        tie = inside & (key == bound)
        # One scan counts both: a block has less than 2^15 keys.
        count = above.to(tl.int32) + (tie.to(tl.int32) << 16)
        before = tl.cumsum(count, 0) - count
        tied = before >> 16
        rank = (before & 0xFFFF) + tl.minimum(tied, left)
        tl.store(target + rank, start + lane, mask=above | (tie & (tied < left)))
        total = tl.sum(count, 0)
        taken = tl.minimum(total >> 16, left)
        target += (total & 0xFFFF) + taken
        left -= taken


@triton.jit
def write_all(target: tl.tensor, size: tl.tensor, topk: tl.constexpr, topk_padded: tl.constexpr) -> None:
    """Write every place of a window that has at most ``topk``, padded with -1."""
    rank = tl.arange(0, topk_padded)
    tl.store(target + rank, tl.where(rank < size, rank, -1), mask=rank < topk)


@triton.jit(do_not_specialize=["num_columns"])
def topk_rows(
    logits: tl.tensor,
    starts: tl.tensor,
    ends: tl.tensor,
    num_columns: tl.tensor,
    logits_row: tl.tensor,
    out: tl.tensor,
    topk: tl.constexpr,
    topk_padded: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Select from one row's window."""
    row = tl.program_id(0).to(tl.int64)
    low, size = find_window(starts, ends, row, num_columns)
    source = logits + row * logits_row + low
    target = out + row * topk
    if size <= topk:
        write_all(target, size, topk, topk_padded)
    else:
        digit = tl.arange(0, 256)
        prefix = tl.full([], 0, tl.uint32)
        above = tl.full([], 0, tl.int32)
        for step in tl.static_range(4):
            bit = 24 - 8 * step
            reach = above + count_reach(source, 0, size, prefix, bit, block)
            chosen = tl.sum((reach >= topk).to(tl.int32), 0) - 1
            above = tl.maximum(above, tl.max(tl.where(digit > chosen, reach, 0), 0))
            prefix = prefix | (chosen.to(tl.uint32) << bit)
        write_selected(source, target, 0, size, prefix, topk - above, block)


@triton.jit
def choose_digit(tables: tl.tensor, parts: tl.tensor, topk: tl.constexpr) -> tl.tensor:
    """Return the last digit that ``topk`` keys of a row reach, by the tables of its parts."""
    digit = tl.arange(0, 256)
    reach = tl.zeros([TABLES, 256], tl.int32)
    for first in tl.range(0, parts, TABLES):
        part = first + tl.arange(0, TABLES)
        reach += tl.load(tables + part[:, None] * TABLE + digit[None, :], mask=part[:, None] < parts, other=0)
    return tl.sum((tl.sum(reach, 0) >= topk).to(tl.int32), 0) - 1


@triton.jit(do_not_specialize=["num_columns", "bit"])
def count_parts(
    logits: tl.tensor,
    starts: tl.tensor,
    ends: tl.tensor,
    num_columns: tl.tensor,
    logits_row: tl.tensor,
    earlier: tl.tensor,
    tables: tl.tensor,
    bit: tl.tensor,
    topk: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Write the table of one part of a row for the digit at ``bit``, from the tables of the digit before, if any."""
    row = tl.program_id(0).to(tl.int64)
    low, size = find_window(starts, ends, row, num_columns)
    share = find_share(size, block)
    first = tl.program_id(1) * share
    if (size > topk) & (first < size):
        row_tables = row * tl.num_programs(1) * TABLE
        own = row_tables + tl.program_id(1) * TABLE
        prefix = tl.full([], 0, tl.uint32)
        above = tl.full([], 0, tl.int32)
        if earlier is not None:
            chosen = choose_digit(earlier + row_tables, tl.cdiv(size, share), topk)
            above = tl.load(earlier + own + chosen + 1)
            prefix = tl.load(earlier + own + PREFIX).to(tl.uint32, bitcast=True)
            prefix = prefix | (chosen.to(tl.uint32) << (bit + 8).to(tl.uint32))
        source = logits + row * logits_row + low
        reach = count_reach(source, first, tl.minimum(first + share, size), prefix, bit.to(tl.uint32), block)
        tl.store(tables + own + tl.arange(0, 256), above + reach)
        tl.store(tables + own + ABOVE, above)
        tl.store(tables + own + PREFIX, prefix.to(tl.int32, bitcast=True))


@triton.jit(do_not_specialize=["num_columns"])
def collect_parts(
    logits: tl.tensor,
    starts: tl.tensor,
    ends: tl.tensor,
    num_columns: tl.tensor,
    logits_row: tl.tensor,
    tables: tl.tensor,
    out: tl.tensor,
    topk: tl.constexpr,
    topk_padded: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Write what one part of a row contributes, behind what those before it do, by the tables of the last digit."""
    row = tl.program_id(0).to(tl.int64)
    low, size = find_window(starts, ends, row, num_columns)
    share = find_share(size, block)
    first = tl.program_id(1) * share
    target = out + row * topk
    if size <= topk:
        if tl.program_id(1) == 0:
            write_all(target, size, topk, topk_padded)
    elif first < size:
        tables += row * tl.num_programs(1) * TABLE
        parts = tl.cdiv(size, share)
        chosen = choose_digit(tables, parts, topk)
        prefix = tl.load(tables + tl.program_id(1) * TABLE + PREFIX).to(tl.uint32, bitcast=True)
        left = tl.full([], topk, tl.int32)
        tied = tl.full([], 0, tl.int32)
        for start in tl.range(0, parts, TABLES):
            part = start + tl.arange(0, TABLES)
            before = part < tl.program_id(1)
            reach = tl.load(tables + part * TABLE + chosen, mask=before, other=0)
            above = tl.load(tables + part * TABLE + chosen + 1, mask=part < parts, other=0)
            left -= tl.sum(above, 0)
            above = tl.where(before, above, 0)
            target += tl.sum(above, 0)
            tied += tl.sum(reach - above, 0)
        taken = tl.minimum(tied, left)
        source = logits + row * logits_row + low
        bound = prefix | chosen.to(tl.uint32)
        write_selected(source, target + taken, first, tl.minimum(first + share, size), bound, left - taken, block)
