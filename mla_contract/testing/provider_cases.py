"""What a kernel provider is asked to run: every operation, in the element types and layouts that the contract allows.

Sizes are the smallest at which edges show: rows with fewer, exactly and more candidates than top-k, empty rows,
padding, batches without rows, blocks that are scattered, garbage behind the last offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.contract.schema.provider import (
    ChunkLogits,
    GatherIndexerK,
    IndexerCacheFormat,
    KeyLayout,
    MapSlots,
    Operation,
    PagedLogits,
    SparseAttention,
    TopkRows,
    WriteIndexerK,
    padded_columns,
)

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
TOPK, HEAD_DIM, WIDTH, VALUE_WIDTH = 64, 128, 576, 512
GARBAGE = 1 << 28
"""An index that nothing may follow: behind the last offset, and in columns behind a request's blocks of its own."""


@dataclass(frozen=True, slots=True)
class ProviderCase:
    """One operation with one set of inputs.

    Attributes:
        name: What is special about it.
        make: Makes the inputs on the host; elements of outputs do not matter.
        outputs: Fields that are written.
    """

    name: str
    make: Callable[[], Operation[Any]]
    outputs: tuple[str, ...]


def provider_cases() -> Iterator[ProviderCase]:
    """Yield every case, operation by operation."""
    yield from _map_cases()
    yield from _topk_cases()
    yield from _attention_cases()
    yield from _page_cases()
    yield from _logits_cases()


def _random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _ints(values: Sequence[Any], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def _map_cases() -> Iterator[ProviderCase]:
    def make(block: int, rows: int, width: int) -> MapSlots:
        random = _random(block)
        table = torch.randint(-1, 90, (3, 5), generator=random, dtype=torch.int32)
        positions = torch.randint(-1, 7 * block, (rows, width), generator=random, dtype=torch.int32)
        positions[rows // 2 :] = torch.where(positions[rows // 2 :] % 3 == 0, -1, positions[rows // 2 :])
        if rows > 1:
            positions[-1] = -1
        owners = torch.randint(0, 3, (rows,), generator=random, dtype=torch.int32)
        out = torch.empty(rows, width, dtype=torch.int32)
        return MapSlots(positions=positions, req_id_per_token=owners, block_table=table, block_size=block, out=out)

    for block, rows, width in ((1, 5, TOPK), (16, 9, TOPK), (64, 3, 33), (64, 1, 1), (16, 0, TOPK)):
        yield ProviderCase(f"block {block}, {rows} rows of {width}", partial(make, block, rows, width), ("out",))


def _topk_cases() -> Iterator[ProviderCase]:
    def make(lens: Sequence[int], starts: Sequence[int] | None, topk: int, stable: bool) -> TopkRows:
        first = starts or [0] * len(lens)
        columns = max([first[row] + lens[row] for row in range(len(lens))], default=1)
        stride = padded_columns(max(columns, 1))
        random = _random(topk + len(lens))
        if stable:
            scores = torch.randint(0, 4, (len(lens), stride), generator=random).float()
        else:
            orders = [torch.randperm(stride, generator=random) for _ in lens]
            scores = torch.stack(orders) if orders else torch.empty(0, stride)
        return TopkRows(
            logits=scores.float()[: len(lens), :columns],
            starts=None if starts is None else _ints(starts),
            ends=_ints([begin + length for begin, length in zip(first, lens, strict=True)]),
            topk=topk,
            out=torch.empty(len(lens), topk, dtype=torch.int32),
            stable=stable,
        )

    for topk in (TOPK, 2048):
        lens = [topk - 1, topk, topk + 1, 0, 1, 3 * topk, 17]
        shifts = [0, 3, 1, 5, 700, 2, 0]
        for stable in (False, True):
            text = f"topk {topk}{', stable with ties' if stable else ''}"
            yield ProviderCase(f"decode, {text}", partial(make, lens, None, topk, stable), ("out",))
            yield ProviderCase(f"prefill, {text}", partial(make, lens, shifts, topk, stable), ("out",))
    yield ProviderCase("decode, no rows", lambda: make([], None, TOPK, False), ("out",))
    yield ProviderCase("prefill, no rows", lambda: make([], [], TOPK, False), ("out",))


_ROWS = (TOPK - 1, TOPK, 0, 1, 17, TOPK, 0)


def _attention_cases() -> Iterator[ProviderCase]:
    def make(
        types: tuple[torch.dtype, torch.dtype],
        heads: int,
        rows: Sequence[int] = _ROWS,
        *,
        lse: bool = True,
        sinks: bool = False,
        invalid: bool = False,
        sizes: tuple[int, int] = (WIDTH, VALUE_WIDTH),
    ) -> SparseAttention:
        random, (width, latent) = _random(heads), sizes
        kv = torch.randn(96, width, generator=random).to(types[1])
        total = sum(rows)
        # Behind the last offset stands garbage: nothing may follow it.
        indices = torch.full((total + 40,), GARBAGE, dtype=torch.int32)
        indices[:total] = torch.randint(96, (total,), generator=random, dtype=torch.int32)
        if invalid:
            indices[:total:5] = -1
        return SparseAttention(
            q=torch.randn(len(rows), heads, width, generator=random).to(types[0]),
            kv_cache=kv,
            kv_indptr=torch.tensor([0, *rows]).cumsum(0).int(),
            kv_indices=indices,
            out=torch.empty(len(rows), heads, latent, dtype=BF16 if types[0].itemsize == 1 else types[0]),
            softmax_scale=width**-0.5,
            lse=torch.empty(len(rows), heads) if lse else None,
            sinks=torch.randn(heads, generator=random) if sinks else None,
            q_scale=torch.tensor([0.75]) if types[0].itemsize == 1 else None,
            kv_scale=torch.tensor([1.25]) if types[1].itemsize == 1 else None,
            has_invalid=invalid,
            has_empty_rows=0 in rows,
        )

    def case(text: str, *args: Any, **kwargs: Any) -> ProviderCase:
        outputs = ("out", "lse") if kwargs.get("lse", True) else ("out",)
        return ProviderCase(text, lambda: make(*args, **kwargs), outputs)

    for types in ((BF16, BF16), (FP16, FP16), (FP32, FP32), (BF16, FN), (BF16, FNUZ), (FN, FN), (FNUZ, FNUZ)):
        names = " over ".join(_name(dtype) for dtype in types)
        for heads in (16, 128):
            yield case(f"{names}, {heads} heads", types, heads)
        yield case(f"{names}, -1 entries", types, 16, invalid=True)
        yield case(f"{names}, no LSE", types, 16, lse=False)
    yield case("8 heads", (BF16, BF16), 8)
    yield case("sinks", (BF16, BF16), 16, sinks=True)
    yield case("no empty row", (BF16, BF16), 16, (5, 1, TOPK))
    yield case("padding rows behind", (BF16, BF16), 16, (TOPK, 9, 0, 0, 0))
    yield case("no rows", (BF16, BF16), 16, ())
    yield case("rows of 80 elements, 64 of them values", (BF16, BF16), 16, sizes=(80, 64))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).rpartition(".")[2]


_FORMATS = tuple(
    (IndexerCacheFormat(head_dim=HEAD_DIM, fp8_dtype=dtype, layout=layout, power_of_two_scale=power), block)
    for dtype, layout, power, block in product((FN, FNUZ), KeyLayout, (True, False), (64, 16, 1))
    if layout is KeyLayout.NORMAL or block > 1
)
_FLOATS = tuple((IndexerCacheFormat(head_dim=HEAD_DIM, fp8_dtype=None), block) for block in (64, 16))


def _format_name(format: IndexerCacheFormat, block: int) -> str:
    if format.fp8_dtype is None:
        return f"bfloat16, block {block}"
    scale = "power of two" if format.power_of_two_scale else "any scale"
    return f"{_name(format.fp8_dtype)}, {format.layout}, {scale}, block {block}"


def _cache(format: IndexerCacheFormat, block: int, num_blocks: int) -> Tensor:
    """Return a cache full of keys, written by the reference."""
    dtype = BF16 if format.fp8_dtype is None else torch.uint8
    cache = torch.zeros(num_blocks, block, format.width, dtype=dtype)
    keys = torch.randn(num_blocks * block, format.head_dim, generator=_random(block)).to(BF16)
    slots = torch.arange(len(keys))
    ReferenceProvider().run(WriteIndexerK(k=keys, slot_mapping=slots, cache=cache, format=format))
    return cache


def _table(lens: Sequence[int], block: int) -> tuple[Tensor, int]:
    """Return scattered blocks of requests, and how many blocks there are."""
    needs = [-(-length // block) for length in lens]
    ids = iter((torch.randperm(sum(needs), generator=_random(3)) + 1).tolist())
    width = max([*needs, 1])
    rows = [[next(ids) if column < need else 0 for column in range(width)] for need in needs]
    return _ints(rows).view(len(lens), width), sum(needs) + 1


def _page_cases() -> Iterator[ProviderCase]:
    def write(format: IndexerCacheFormat, block: int, tokens: int = 9) -> WriteIndexerK:
        slots = torch.randperm(4 * block if block > 2 else 12, generator=_random(1))[:tokens]
        slots[1::4] = -1
        keys = torch.randn(tokens + 2, format.head_dim, generator=_random(2)).to(BF16)
        cache = _cache(format, block, 4 if block > 2 else 12)
        return WriteIndexerK(k=keys, slot_mapping=slots, cache=cache, format=format)

    def gather(format: IndexerCacheFormat, block: int, lens: Sequence[int] = (70, 0, 1, 33)) -> GatherIndexerK:
        table, num_blocks = _table(lens, block)
        cache = _cache(format, block, num_blocks)
        dtype = format.fp8_dtype or cache.dtype
        quantised = format.fp8_dtype is not None
        return GatherIndexerK(
            cache=cache,
            format=format,
            block_table=table,
            cu_seq_lens=torch.tensor([0, *lens]).cumsum(0).int(),
            num_keys=sum(lens),
            k_out=torch.empty(sum(lens) + 7, format.head_dim, dtype=dtype),
            scale_out=torch.empty(sum(lens) + 7, format.groups) if quantised else None,
        )

    for format, block in (*_FORMATS, *_FLOATS):
        text = _format_name(format, block)
        yield ProviderCase(text, partial(write, format, block), ("cache",))
    yield ProviderCase("no tokens", lambda: write(_FORMATS[0][0], 64, 0), ("cache",))
    for format, block in (*_FORMATS, *_FLOATS):
        outputs = ("k_out",) if format.fp8_dtype is None else ("k_out", "scale_out")
        yield ProviderCase(_format_name(format, block), partial(gather, format, block), outputs)
    yield ProviderCase("no keys", lambda: gather(_FORMATS[0][0], 64, (0, 0)), ("k_out", "scale_out"))


def _logits_cases() -> Iterator[ProviderCase]:
    def chunk(dtype: torch.dtype, tokens: int = 5) -> ChunkLogits:
        random, num_keys = _random(tokens), 150
        starts, lens = _ints([0, 3, 70, 70, 149])[:tokens], _ints([1, 60, 80, 0, 1])[:tokens]
        return ChunkLogits(
            q=torch.randn(tokens, 64, HEAD_DIM, generator=random).to(dtype),
            k=torch.randn(num_keys, HEAD_DIM, generator=random).to(dtype),
            k_scale=torch.rand(num_keys, generator=random) + 0.5 if dtype.itemsize == 1 else None,
            weights=torch.randn(tokens, 64, generator=random),
            starts=starts,
            ends=starts + lens,
        )

    def paged(format: IndexerCacheFormat, block: int, next_n: int, lens: Sequence[int] = (70, 3, 0, 33)) -> PagedLogits:
        random, (table, num_blocks) = _random(next_n), _table(lens, block)
        most = 200
        return PagedLogits(
            q=torch.randn(len(lens), next_n, 64, HEAD_DIM, generator=random).to(format.fp8_dtype or BF16),
            cache=_cache(format, block, num_blocks),
            format=format,
            weights=torch.randn(len(lens) * next_n, 64, generator=random),
            context_lens=_ints(lens),
            block_table=table,
            max_model_len=most,
            out=torch.empty(len(lens) * next_n, padded_columns(most)),
        )

    for dtype in (FN, FNUZ, BF16, FP32):
        yield ProviderCase(_name(dtype), partial(chunk, dtype), ())
    yield ProviderCase("no tokens", lambda: chunk(FN, 0), ())
    for (format, block), next_n in product((*_FORMATS, *_FLOATS), (1, 3)):
        text = f"{_format_name(format, block)}, {next_n} queries"
        yield ProviderCase(text, partial(paged, format, block, next_n), ("out",))
    yield ProviderCase("no requests", lambda: paged(_FORMATS[0][0], 64, 1, ()), ("out",))
