"""The reference's indexer operations against naive statements."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import Tensor

from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.contract.schema.provider import (
    ChunkLogits,
    GatherIndexerK,
    IndexerCacheFormat,
    KeyLayout,
    MapSlots,
    PagedLogits,
    TopkRows,
    WriteIndexerK,
    padded_columns,
)
from mla_contract.errors import NoProvider
from tests.backends.kernels.cases import TOPK, Case, naive_logits, naive_topk

DIM, HEADS = 32, 4
FN, FNUZ = torch.float8_e4m3fn, torch.float8_e4m3fnuz
CONTEXTS = (TOPK - 1, TOPK, TOPK + 1, 3 * TOPK + 5)
provider = ReferenceProvider()


def stored(case: Case, format: IndexerCacheFormat) -> tuple[Tensor, Tensor]:
    """Return keys and the cache that holds them."""
    keys = torch.randn(sum(case.lens), format.head_dim, generator=torch.Generator().manual_seed(5)) * 3
    dtype = torch.float32 if format.fp8_dtype is None else torch.uint8
    cache = torch.zeros(case.num_blocks, case.block_size, format.width, dtype=dtype)
    provider.run(WriteIndexerK(k=keys, slot_mapping=case.slot_mapping(), cache=cache, format=format))
    return keys, cache


def gathered(case: Case, cache: Tensor, format: IndexerCacheFormat) -> Tensor:
    """Return the dequantised keys of all requests."""
    total = sum(case.lens)
    k_out = torch.zeros(total + 3, format.head_dim, dtype=format.fp8_dtype or cache.dtype)
    scales = None if format.fp8_dtype is None else torch.zeros(total + 3, format.groups)
    provider.run(
        GatherIndexerK(
            cache=cache,
            format=format,
            block_table=case.block_table(),
            cu_seq_lens=torch.tensor([0, *case.lens]).cumsum(0).int(),
            num_keys=total,
            k_out=k_out,
            scale_out=scales,
        )
    )
    assert not k_out[total:].float().any()
    keys = k_out[:total].float()
    return keys if scales is None else keys * scales[:total].repeat_interleave(format.group, 1)[:, : keys.shape[1]]


@pytest.mark.parametrize("fp8", [FN, FNUZ])
@pytest.mark.parametrize("layout", list(KeyLayout))
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_write_then_gather_quantised_returns_rounded_keys(fp8: torch.dtype, layout: KeyLayout, block_size: int) -> None:
    """What is written comes back, rounded to a sixteenth of a power of two, in both layouts and flavours."""
    case = Case(CONTEXTS, block_size)
    format = IndexerCacheFormat(head_dim=DIM, fp8_dtype=fp8, layout=layout, group=DIM)
    if layout is KeyLayout.SHUFFLE and block_size == 1:
        with pytest.raises(NoProvider, match="multiples of 16"):
            stored(case, format)
        return
    keys, cache = stored(case, format)
    assert ((gathered(case, cache, format) - keys).abs() <= keys.abs() / 16 + 1e-2).all()


def test_write_float_cache_is_exact() -> None:
    """A float cache keeps the keys, and a negative slot keeps nothing."""
    case, format = Case((5, 9), 4), IndexerCacheFormat(head_dim=DIM, fp8_dtype=None)
    keys, cache = stored(case, format)
    assert torch.equal(gathered(case, cache, format), keys)
    before = cache.clone()
    slots = torch.full((2,), -1, dtype=torch.int64)
    provider.run(WriteIndexerK(k=keys, slot_mapping=slots, cache=cache, format=format))
    assert torch.equal(cache, before)


def test_write_layouts_hold_the_same_bytes_in_other_places() -> None:
    """The shuffled page is a permutation of the normal one, and is not equal to it."""
    case = Case((64,), 64)
    pages = [
        stored(case, IndexerCacheFormat(head_dim=DIM, fp8_dtype=FN, layout=layout, group=DIM))[1]
        for layout in KeyLayout
    ]
    assert not torch.equal(pages[0], pages[1])
    assert torch.equal(pages[0].flatten().sort().values, pages[1].flatten().sort().values)


def test_chunk_logits_windows_equal_naive_and_outside_is_never_needed() -> None:
    """Windows agree with the naive statement, clamped and empty ones included; the row stride is aligned."""
    torch.manual_seed(6)
    q, k, weights = torch.randn(9, HEADS, DIM), torch.randn(300, DIM), torch.randn(9, HEADS)
    starts = torch.tensor([0, 0, 5, 100, 299, 0, 7, -3, 290]).int()
    ends = torch.tensor([1, 300, 5, 180, 300, 0, 6, 4, 999]).int()
    scale = torch.rand(300) + 0.5
    logits = provider.run(ChunkLogits(q=q, k=k, k_scale=scale, weights=weights, starts=starts, ends=ends))
    assert logits.stride(0) % 256 == 0
    wanted = naive_logits(q, k * scale[:, None], weights)
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        start, end = max(start, 0), max(min(end, 300), max(start, 0))
        torch.testing.assert_close(logits[row, start:end].double(), wanted[row, start:end], atol=2e-5, rtol=1e-5)
        assert torch.isneginf(logits[row, :start]).all() and torch.isneginf(logits[row, end:]).all()


def test_chunk_logits_bits_do_not_depend_on_the_cut() -> None:
    """Selections and logits are bitwise equal however the query tokens are cut into chunks."""
    torch.manual_seed(7)
    tokens = 700
    q, k, weights = torch.randn(tokens, 2, DIM), torch.randn(tokens, DIM), torch.randn(tokens, 2)
    ends = torch.arange(1, tokens + 1).int()

    def digest(step: int) -> str:
        found = torch.empty(tokens, TOPK, dtype=torch.int32)
        hashed = hashlib.sha256()
        for first in range(0, tokens, step):
            cut = slice(first, min(first + step, tokens))
            starts = torch.zeros_like(ends[cut])
            logits = provider.run(
                ChunkLogits(q=q[cut], k=k, k_scale=None, weights=weights[cut], starts=starts, ends=ends[cut])
            )
            provider.run(TopkRows(logits=logits, starts=starts, ends=ends[cut], topk=TOPK, out=found[cut]))
            hashed.update(logits.contiguous().numpy().tobytes())
        hashed.update(found.numpy().tobytes())
        return hashed.hexdigest()

    assert digest(tokens) == digest(256) == digest(97) == digest(1)


@pytest.mark.parametrize("next_n", [1, 2, 3, 4])
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_paged_logits_equal_naive(next_n: int, block_size: int) -> None:
    """Every decode row sees its own prefix; padding requests see nothing."""
    torch.manual_seed(8)
    case = Case((*CONTEXTS, 0), block_size, next_n)
    format = IndexerCacheFormat(head_dim=DIM, fp8_dtype=FN, group=DIM)
    _, cache = stored(case, format)
    keys = torch.split(gathered(case, cache, format), list(case.lens))
    q, weights = torch.randn(len(case.lens), next_n, HEADS, DIM), torch.randn(len(case.lens) * next_n, HEADS)
    out = torch.full((len(case.lens) * next_n, padded_columns(max(case.lens))), torch.nan)
    provider.run(
        PagedLogits(
            q=q,
            cache=cache,
            format=format,
            weights=weights,
            context_lens=torch.tensor(case.lens).int(),
            block_table=case.block_table(),
            max_model_len=max(case.lens),
            out=out,
        )
    )
    for row in range(len(out)):
        req, n = divmod(row, next_n)
        seen = max(case.lens[req] - next_n + n + 1, 0)
        wanted = naive_logits(q[req, n, None], keys[req][:seen], weights[row, None])[0]
        torch.testing.assert_close(out[row, :seen].double(), wanted, atol=1e-4, rtol=1e-5)


def test_topk_rows_around_topk_equals_naive_with_ties() -> None:
    """Windows of topk - 1, topk, topk + 1, none and many columns select what sorting selects, ties to the left."""
    logits = torch.randint(-4, 5, (7, 200), generator=torch.Generator().manual_seed(9)).float()
    logits[5] = -torch.inf
    starts = torch.tensor([0, 3, 10, 50, 0, 1, 7]).int()
    ends = torch.tensor([TOPK - 1, 3 + TOPK, 11 + TOPK, 50, 200, 180, 2]).int()
    out = torch.empty(7, TOPK, dtype=torch.int32)
    provider.run(TopkRows(logits=logits, starts=starts, ends=ends, topk=TOPK, out=out, stable=True))
    for row in range(7):
        window = logits[row, starts[row] : max(int(ends[row]), int(starts[row]))].tolist()
        wanted = sorted(naive_topk(window, TOPK))
        assert out[row].tolist() == wanted + [-1] * (TOPK - len(wanted))


@pytest.mark.parametrize("spread", [3, 60, 2000])
@pytest.mark.parametrize("topk", [1, 4, 9])
def test_topk_rows_wide_random_windows_equal_naive(spread: int, topk: int) -> None:
    """Wide rows with many, some and few ties, and infinities, select what sorting selects."""
    generator = torch.Generator().manual_seed(spread + topk)
    logits = torch.randint(-spread, spread, (60, 1000), generator=generator).float()
    logits[logits == spread - 1] = torch.inf
    logits[::3][logits[::3] < 0] = -torch.inf
    starts = torch.randint(0, 500, (60,), generator=generator).int()
    ends = starts + torch.randint(-3, 500, (60,), generator=generator).int()
    out = torch.empty(60, topk, dtype=torch.int32)
    provider.run(TopkRows(logits=logits, starts=starts, ends=ends, topk=topk, out=out, stable=True))
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        wanted = sorted(naive_topk(logits[row, start : max(start, end)].tolist(), topk))
        assert out[row].tolist() == wanted + [-1] * (topk - len(wanted))


def test_topk_rows_tie_in_a_group_with_a_lower_peak_goes_left() -> None:
    """The least value twice, once under a higher peak and once as the peak of an earlier group."""
    logits = torch.zeros(1, 256)
    logits[0, 10], logits[0, 130], logits[0, 140], logits[0, 200] = 5.0, 5.0, 9.0, 7.0
    out = torch.empty(1, 3, dtype=torch.int32)
    provider.run(TopkRows(logits=logits, starts=None, ends=torch.tensor([256]).int(), topk=3, out=out, stable=True))
    assert out.tolist() == [[10, 140, 200]]


def test_topk_rows_nan_ranks_first() -> None:
    """A NaN is selected like the largest value, once, and no column twice."""
    logits = torch.arange(80.0).repeat(2, 1)
    logits[0, 3] = torch.nan
    out = torch.empty(2, 4, dtype=torch.int32)
    provider.run(TopkRows(logits=logits, starts=None, ends=torch.tensor([80, 80]).int(), topk=4, out=out))
    assert out.tolist() == [[3, 77, 78, 79], [76, 77, 78, 79]]


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_map_slots_follows_the_table_and_keeps_padding(block_size: int) -> None:
    """Positions become slots; padding, positions behind the table and negative blocks become -1."""
    case = Case((70, 3), block_size)
    table, slots = case.block_table(), case.slot_mapping()
    table[1, 1:] = -1
    positions = torch.tensor([[0, 69, -1, 10**6], [2, 0, -1, block_size * 70]]).int()
    if block_size > 1:
        positions[1, 3] = block_size
    out = torch.empty(2, 4, dtype=torch.int32)
    owners = torch.tensor([0, 1]).int()
    provider.run(
        MapSlots(positions=positions, req_id_per_token=owners, block_table=table, block_size=block_size, out=out)
    )
    assert out[0].tolist() == [int(slots[0]), int(slots[69]), -1, -1]
    last = -1 if block_size == 1 else int(slots[72])
    assert out[1].tolist() == [last, int(slots[70]), -1, -1]
