"""Logits of the lightning indexer: weighted, rectified dot products, summed over heads in one tile.

An element's arithmetic does not depend on where its query or key stands in a tile, so logits have the same bits
however a prompt is cut into chunks. For that the kernels are launched without fusing products and sums, which the
compiler does in one place of a tile and not in another.
"""

# The compiler is Any to mypy, which therefore takes its decorator for untyped.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from mla_contract.backends.kernels.triton.page_kernels import value_offset


@triton.jit
def load_queries(
    q: tl.tensor,
    row: tl.tensor,
    known: tl.tensor,
    q_token: tl.tensor,
    q_head: tl.tensor,
    num_heads: tl.constexpr,
    heads_padded: tl.constexpr,
    head_dim: tl.constexpr,
    dim_padded: tl.constexpr,
    tokens: tl.constexpr,
) -> tl.tensor:
    """Return queries as [tokens * heads, dims]; ``row`` and ``known`` are given for each of these."""
    head = tl.arange(0, tokens * heads_padded) % heads_padded
    dim = tl.arange(0, dim_padded)
    inside = (known & (head < num_heads))[:, None] & (dim < head_dim)[None, :]
    return tl.load(q + (row * q_token + head * q_head)[:, None] + dim[None, :], mask=inside, other=0.0)


@triton.jit
def load_weights(
    weights: tl.tensor,
    row: tl.tensor,
    known: tl.tensor,
    weight_row: tl.tensor,
    num_heads: tl.constexpr,
    heads_padded: tl.constexpr,
    size: tl.constexpr,
) -> tl.tensor:
    """Return the head weights as [tokens * heads]."""
    head = tl.arange(0, size) % heads_padded
    return tl.load(weights + row * weight_row + head, mask=known & (head < num_heads), other=0.0)


@triton.jit
def score(
    query: tl.tensor, key: tl.tensor, weight: tl.tensor, tokens: tl.constexpr, heads_padded: tl.constexpr
) -> tl.tensor:
    """Return the logits of a tile, [keys, tokens], from queries [tokens * heads, dims] and keys [keys, dims].

    Heads lie along a row of the product, where most of their sum is taken inside a thread.
    """
    dots = tl.dot(key, tl.trans(query), input_precision="ieee")
    dots = tl.maximum(dots, 0.0) * weight[None, :]
    return tl.sum(tl.reshape(dots, [key.shape[0], tokens, heads_padded]), 2)


@triton.jit(do_not_specialize=["num_rows", "num_keys", "columns"])
def chunk_logits(
    q: tl.tensor,
    k: tl.tensor,
    k_scale: tl.tensor,
    weights: tl.tensor,
    starts: tl.tensor,
    ends: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    num_keys: tl.tensor,
    q_token: tl.tensor,
    q_head: tl.tensor,
    k_row: tl.tensor,
    weight_row: tl.tensor,
    out_row: tl.tensor,
    columns: tl.tensor,
    num_heads: tl.constexpr,
    heads_padded: tl.constexpr,
    head_dim: tl.constexpr,
    dim_padded: tl.constexpr,
    dot_type: tl.constexpr,
    tokens: tl.constexpr,
    block_n: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    """Score one span of ``columns`` keys for a block of tokens; what no window reaches is left out."""
    token = tl.program_id(0) * tokens + tl.arange(0, tokens)
    known = token < num_rows
    start = tl.load(starts + token, mask=known, other=2147483647)
    end = tl.load(ends + token, mask=known, other=0)
    low = tl.maximum(tl.min(start, 0) // block_n * block_n, tl.program_id(1) * columns)
    high = tl.minimum(tl.minimum(tl.max(end, 0), num_keys), (tl.program_id(1) + 1) * columns)
    if low < high:
        member = tl.arange(0, tokens * heads_padded) // heads_padded
        row = (tl.program_id(0) * tokens + member).to(tl.int64)
        listed = row < num_rows
        query = load_queries(q, row, listed, q_token, q_head, num_heads, heads_padded, head_dim, dim_padded, tokens).to(
            dot_type
        )
        weight = load_weights(weights, row, listed, weight_row, num_heads, heads_padded, tokens * heads_padded)
        dim = tl.arange(0, dim_padded)
        target = out + token.to(tl.int64)[None, :] * out_row
        for first in tl.range(low, high, block_n, num_stages=stages):
            column = first + tl.arange(0, block_n)
            inside = (column < num_keys)[:, None] & (dim < head_dim)[None, :]
            key = tl.load(k + column.to(tl.int64)[:, None] * k_row + dim[None, :], mask=inside, other=0.0)
            logit = score(query, key.to(dot_type), weight, tokens, heads_padded)
            if k_scale is not None:
                logit = logit * tl.load(k_scale + column, mask=column < num_keys, other=0.0)[:, None]
            tl.store(target + column[:, None], logit, mask=known[None, :] & (column < num_keys)[:, None])


@triton.jit(do_not_specialize=["longest"])
def paged_logits(
    q: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    weights: tl.tensor,
    context_lens: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    q_req: tl.tensor,
    q_token: tl.tensor,
    q_head: tl.tensor,
    weight_row: tl.tensor,
    table_row: tl.tensor,
    page_values: tl.tensor,
    page_scales: tl.tensor,
    out_row: tl.tensor,
    longest: tl.tensor,
    block_size: tl.tensor,
    next_n: tl.constexpr,
    num_heads: tl.constexpr,
    heads_padded: tl.constexpr,
    head_dim: tl.constexpr,
    dim_padded: tl.constexpr,
    shuffled: tl.constexpr,
    dot_type: tl.constexpr,
    tokens: tl.constexpr,
    block_n: tl.constexpr,
    stages: tl.constexpr,
) -> None:
    """Score one span of a request's cached keys for a group of its new tokens."""
    request = tl.program_id(1).to(tl.int64)
    length = tl.minimum(tl.load(context_lens + request), longest)
    share = tl.cdiv(tl.cdiv(length, tl.num_programs(0)), block_n) * block_n
    low = tl.program_id(0) * share
    high = tl.minimum(low + share, length)
    if low < high:
        member = tl.program_id(2) * tokens + tl.arange(0, tokens * heads_padded) // heads_padded
        query = load_queries(
            q + request * q_req,
            member,
            member < next_n,
            q_token,
            q_head,
            num_heads,
            heads_padded,
            head_dim,
            dim_padded,
            tokens,
        ).to(dot_type)
        row = request * next_n + member
        weight = load_weights(weights, row, member < next_n, weight_row, num_heads, heads_padded, tokens * heads_padded)
        token = tl.program_id(2) * tokens + tl.arange(0, tokens)
        target = out + (request * next_n + token)[None, :] * out_row
        dim = tl.arange(0, dim_padded)
        entry = low + tl.arange(0, block_n)
        page = tl.load(table + request * table_row + entry // block_size, mask=entry < high, other=0)
        for first in tl.range(low, high, block_n, num_stages=stages):
            column = first + tl.arange(0, block_n)
            at = column % block_size
            inside = (column < high)[:, None] & (dim < head_dim)[None, :]
            base = page.to(tl.int64) * page_values
            key = tl.load(values + base[:, None] + value_offset(at, dim, head_dim, shuffled), mask=inside, other=0.0)
            logit = score(query, key.to(dot_type), weight, tokens, heads_padded)
            if scales is not None:
                place = page.to(tl.int64) * page_scales + block_size * head_dim // 4 + at
                logit = logit * tl.load(scales + place, mask=column < high, other=0.0)[:, None]
            entry = column + block_n
            page = tl.load(table + request * table_row + entry // block_size, mask=entry < high, other=0)
            tl.store(target + column[:, None], logit, mask=(token < next_n)[None, :] & (column < high)[:, None])
