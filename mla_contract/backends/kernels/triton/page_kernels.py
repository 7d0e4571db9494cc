"""Pages of the indexer's cache and the block table: where bytes lie, and the kernels that move them."""

# The compiler is Any to mypy, which therefore takes its decorator for untyped.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

TILE = tl.constexpr(16)
"""Tokens and dims of one tile of the shuffled layout."""


@triton.jit
def value_offset(token: tl.tensor, dim: tl.tensor, head_dim: tl.constexpr, shuffled: tl.constexpr) -> tl.tensor:
    """Return the element of each value inside its page, [tokens, dims]."""
    if shuffled:
        token = token // TILE * (TILE * head_dim) + token % TILE * TILE
        dim = dim // TILE * (TILE * TILE) + dim % TILE
    else:
        token = token * head_dim
    return token[:, None] + dim[None, :]


@triton.jit
def map_slots(
    positions: tl.tensor,
    owners: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    num_columns: tl.tensor,
    topk: tl.tensor,
    position_row: tl.tensor,
    table_row: tl.tensor,
    out_row: tl.tensor,
    block_size: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Map one block of a token's positions through its request's row of the block table."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < topk
    position = tl.load(positions + token * position_row + column, mask=inside, other=-1)
    owner = tl.load(owners + token).to(tl.int64)
    entry = position // block_size
    known = (position >= 0) & (entry < num_columns)
    page = tl.load(table + owner * table_row + entry, mask=known, other=-1)
    slot = tl.where(page >= 0, page * block_size + position % block_size, -1)
    tl.store(out + token * out_row + column, slot, mask=inside)


@triton.jit
def round_e4m3(value: tl.tensor, smallest: tl.constexpr, signed_zero: tl.constexpr) -> tl.tensor:
    """Round to the nearest e4m3 number, ties to even, as float32: the conversion after it is exact everywhere.

    ``smallest`` is the flavour's smallest normal number; below it numbers lie an eighth of it apart.
    """
    bits = value.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = (size + 0x7FFFF + ((size >> 20) & 1)) & 0x7FF00000
    # Float32 numbers near this one lie exactly that far apart, so the sum rounds.
    coarse = smallest * 1572864.0
    small = ((size.to(tl.float32, bitcast=True) + coarse) - coarse).to(tl.int32, bitcast=True)
    rounded = tl.where(size.to(tl.float32, bitcast=True) < smallest, small, normal)
    sign = bits & -0x80000000
    if not signed_zero:
        sign = tl.where(rounded == 0, 0, sign)
    return (rounded | sign).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["num_tokens"])
def write_keys(
    k: tl.tensor,
    slots: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    num_tokens: tl.tensor,
    k_row: tl.tensor,
    page_values: tl.tensor,
    page_scales: tl.tensor,
    block_size: tl.tensor,
    head_dim: tl.constexpr,
    group: tl.constexpr,
    group_padded: tl.constexpr,
    groups: tl.constexpr,
    largest: tl.constexpr,
    smallest: tl.constexpr,
    power_of_two: tl.constexpr,
    shuffled: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Write one group of a block of keys, quantised when ``scales`` is given."""
    token = tl.program_id(0) * block + tl.arange(0, block)
    number = tl.program_id(1)
    member = tl.arange(0, group_padded)
    dim = number * group + member
    slot = tl.load(slots + token, mask=token < num_tokens, other=-1)
    stored = slot >= 0
    inside = stored[:, None] & ((member < group) & (dim < head_dim))[None, :]
    key = tl.load(k + token.to(tl.int64)[:, None] * k_row + dim[None, :], mask=inside, other=0.0).to(tl.float32)
    page = slot // block_size
    at = (slot % block_size).to(tl.int32)
    if scales is not None:
        scale = tl.div_rn(tl.maximum(tl.max(tl.abs(key), 1), 1e-4), tl.full([block], largest, tl.float32))
        if power_of_two:
            bits = scale.to(tl.int32, bitcast=True)
            scale = ((bits + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
        key = tl.div_rn(key, tl.broadcast_to(scale[:, None], key.shape))
        key = round_e4m3(tl.minimum(tl.maximum(key, -largest), largest), smallest, largest > 300.0)
        first = block_size * head_dim // 4
        tl.store(scales + page * page_scales + first + at * groups + number, scale, mask=stored)
    target = values + (page * page_values)[:, None] + value_offset(at, dim, head_dim, shuffled)
    tl.store(target, key.to(values.dtype.element_ty), mask=inside)


@triton.jit
def find_owner(starts: tl.tensor, num_reqs: tl.tensor, key: tl.tensor, steps: tl.tensor) -> tl.tensor:
    """Return the last request whose prefix sum is at or before each key."""
    low = tl.zeros_like(key)
    high = low + num_reqs
    for _ in range(steps):
        middle = (low + high) // 2
        right = (tl.load(starts + middle) <= key) & (middle > low)
        low = tl.where(right, middle, low)
        high = tl.where(right, high, middle)
    return low


@triton.jit(do_not_specialize=["num_keys", "num_reqs", "steps"])
def gather_keys(
    values: tl.tensor,
    scales: tl.tensor,
    table: tl.tensor,
    starts: tl.tensor,
    k_out: tl.tensor,
    scale_out: tl.tensor,
    num_keys: tl.tensor,
    num_reqs: tl.tensor,
    table_row: tl.tensor,
    page_values: tl.tensor,
    page_scales: tl.tensor,
    out_row: tl.tensor,
    scale_row: tl.tensor,
    block_size: tl.tensor,
    steps: tl.tensor,
    head_dim: tl.constexpr,
    dim_padded: tl.constexpr,
    groups: tl.constexpr,
    shuffled: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Copy one block of keys out of their pages."""
    key = tl.program_id(0) * block + tl.arange(0, block)
    known = key < num_keys
    key = tl.minimum(key, num_keys - 1)
    owner = find_owner(starts, num_reqs, key, steps)
    position = key - tl.load(starts + owner)
    page = tl.load(table + owner.to(tl.int64) * table_row + position // block_size).to(tl.int64)
    at = position % block_size
    dim = tl.arange(0, dim_padded)
    inside = known[:, None] & (dim < head_dim)[None, :]
    source = values + (page * page_values)[:, None] + value_offset(at, dim, head_dim, shuffled)
    row = key.to(tl.int64)
    value = tl.load(source, mask=inside)
    tl.store(k_out + row[:, None] * out_row + dim[None, :], value.to(k_out.dtype.element_ty), mask=inside)
    if scales is not None:
        first = page * page_scales + block_size * head_dim // 4 + at * groups
        for number in tl.static_range(groups):
            tl.store(scale_out + row * scale_row + number, tl.load(scales + first + number, mask=known), mask=known)
