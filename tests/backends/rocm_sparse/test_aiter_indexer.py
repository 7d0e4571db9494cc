"""The indexer's operations through the provider and the double, against the reference."""

from __future__ import annotations

from dataclasses import replace

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
from mla_contract.testing.aiter_double import install
from tests.backends.kernels.cases import Case
from tests.backends.rocm_sparse.aiter_cases import FN, FNUZ, FP8, provider

DIM, HEADS, TOPK = 128, 32, 24
CONTEXTS = (TOPK - 1, TOPK, TOPK + 1, 70)
reference = ReferenceProvider()


def layout_of(block_size: int) -> KeyLayout:
    """Return the layout that aiter's paged kernel reads."""
    return KeyLayout.NORMAL if block_size == 1 else KeyLayout.SHUFFLE


def write(case: Case, arch: str, layout: KeyLayout | None = None) -> tuple[WriteIndexerK, IndexerCacheFormat]:
    """Return a write of all tokens of a case."""
    format = IndexerCacheFormat(
        head_dim=DIM, fp8_dtype=FP8[arch], layout=layout_of(case.block_size) if layout is None else layout
    )
    keys = torch.randn(sum(case.lens), DIM, generator=torch.Generator().manual_seed(5)) * 3
    cache = torch.zeros(case.num_blocks, case.block_size, format.width, dtype=torch.uint8)
    return WriteIndexerK(k=keys, slot_mapping=case.slot_mapping(), cache=cache, format=format), format


def cache_of(case: Case, arch: str) -> tuple[Tensor, IndexerCacheFormat]:
    """Return the cache as the reference writes it."""
    inputs, format = write(case, arch)
    reference.run(inputs)
    return inputs.cache, format


def queries(arch: str, *shape: int) -> Tensor:
    """Return queries in the flavour of the arch."""
    return torch.randn(*shape, HEADS, DIM, generator=torch.Generator().manual_seed(6)).to(FP8[arch])


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize("layout", list(KeyLayout))
def test_write_and_gather_equal_reference_to_the_byte(arch: str, block_size: int, layout: KeyLayout) -> None:
    """Both flavours and both layouts agree byte for byte; a page that cannot be shuffled is refused."""
    case = Case(CONTEXTS, block_size)
    own, format = write(case, arch, layout)
    with install("0.1.20", arch):
        run = provider(arch)
        if layout is KeyLayout.SHUFFLE and block_size == 1:
            assert "multiple of 16" in str(run.reason(own))
            return
        run.run(own)
        wanted = replace(own, cache=torch.zeros_like(own.cache))
        reference.run(wanted)
        assert torch.equal(own.cache, wanted.cache)
        total = sum(case.lens)
        buffers = []
        for one in (run, reference):
            k_out = torch.zeros(total + 5, DIM, dtype=torch.uint8)
            scale_out = torch.zeros(total + 5, 1)
            one.run(
                GatherIndexerK(
                    cache=own.cache,
                    format=format,
                    block_table=case.block_table(),
                    cu_seq_lens=torch.tensor([0, *case.lens]).cumsum(0).int(),
                    num_keys=total,
                    k_out=k_out,
                    scale_out=scale_out,
                )
            )
            buffers.append((k_out, scale_out))
    assert torch.equal(buffers[0][0], buffers[1][0]) and torch.equal(buffers[0][1], buffers[1][1])


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_chunk_logits_equal_reference_inside_the_windows(arch: str) -> None:
    """Windows agree within float32 rounding, and the row stride is a multiple of 256."""
    generator = torch.Generator().manual_seed(7)
    k = torch.randn(300, DIM, generator=generator).to(FP8[arch])
    starts = torch.tensor([0, 0, 7, 290, 20]).int()
    ends = torch.tensor([1, 300, 7, 310, 180]).int()
    inputs = ChunkLogits(
        q=queries(arch, 5),
        k=k,
        k_scale=torch.rand(300, generator=generator) + 0.5,
        weights=torch.randn(5, HEADS, generator=generator),
        starts=starts,
        ends=ends,
    )
    with install("0.1.20", arch):
        found = provider(arch).run(inputs)
    wanted = reference.run(inputs)
    assert found.stride(0) % 256 == 0
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.clamp(max=300).tolist(), strict=True)):
        torch.testing.assert_close(found[row, start:end], wanted[row, start:end], atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("next_n", [1, 2, 3, 4])
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_paged_logits_then_topk_select_what_the_reference_selects(next_n: int, block_size: int) -> None:
    """Decode rows agree where they see keys, whatever lies behind; the selections are equal as sets."""
    case = Case((*CONTEXTS, 0), block_size)
    cache, format = cache_of(case, "gfx950")
    rows = len(case.lens) * next_n
    lens = torch.tensor(case.lens).int()
    ends = (lens.repeat_interleave(next_n) - next_n + 1 + torch.arange(rows) % next_n).int()
    outs, chosen = [], []
    with install("0.1.20", "gfx950"):
        for one in (provider("gfx950"), reference):
            out = torch.full((rows, padded_columns(128)), torch.nan)
            one.run(
                PagedLogits(
                    q=queries("gfx950", len(case.lens), next_n),
                    cache=cache,
                    format=format,
                    weights=torch.randn(rows, HEADS, generator=torch.Generator().manual_seed(8)),
                    context_lens=lens,
                    block_table=case.block_table(),
                    max_model_len=128,
                    out=out,
                )
            )
            topk = torch.empty(rows, TOPK, dtype=torch.int32)
            one.run(TopkRows(logits=out, starts=None, ends=ends, topk=TOPK, out=topk))
            outs.append(out)
            chosen.append(topk)
    for row in range(rows):
        seen = max(int(ends[row]), 0)
        torch.testing.assert_close(outs[0][row, :seen], outs[1][row, :seen], atol=1e-3, rtol=1e-5)
    assert torch.equal(chosen[0].sort(1).values, chosen[1].sort(1).values)


@pytest.mark.parametrize("stable", [False, True])
def test_topk_absolute_columns_become_positions(stable: bool) -> None:
    """Rows with a start come back as positions in their window, -1 untouched; stable ties go to the left."""
    logits = torch.randint(-3, 4, (6, 120), generator=torch.Generator().manual_seed(9)).float()
    starts = torch.tensor([0, 10, 10, 40, 7, 100]).int()
    ends = torch.tensor([120, 10 + TOPK - 1, 10 + TOPK, 41 + TOPK, 7, 103]).int()
    found = []
    with install("0.1.20", "gfx950"):
        for one in (provider("gfx950"), reference):
            out = torch.empty(6, TOPK, dtype=torch.int32)
            one.run(TopkRows(logits=logits, starts=starts, ends=ends, topk=TOPK, out=out, stable=stable))
            found.append(out)
    mine, wanted = found
    if stable:
        assert torch.equal(mine.sort(1).values, wanted.sort(1).values)
    for row in range(6):
        picked = [sorted(logits[row, starts[row] + one[row][one[row] >= 0]].tolist()) for one in found]
        assert picked[0] == picked[1]
        assert (mine[row] == -1).sum() == (wanted[row] == -1).sum()
        assert len(set(mine[row][mine[row] >= 0].tolist())) == (mine[row] >= 0).sum()


def test_map_slots_is_refused_by_name() -> None:
    """Aiter has no kernel for it, and says so."""
    none = torch.zeros(1, 1, dtype=torch.int32)
    inputs = MapSlots(positions=none, req_id_per_token=none[0], block_table=none, block_size=1, out=none)
    with install("0.1.20", "gfx950"):
        assert provider("gfx950").reason(inputs) == "aiter has no kernel for MapSlots"


def test_indexer_inputs_that_aiter_would_misread_are_refused() -> None:
    """Each silent misreading has its reason; the control beside it is accepted."""
    case = Case((20,), 16)
    own, format = write(case, "gfx950")
    with install("0.1.20", "gfx950"):
        run = provider("gfx950")
        assert run.reason(own) is None
        assert "int64 without a check" in str(run.reason(replace(own, slot_mapping=own.slot_mapping.int())))
        assert "misread" in str(run.reason(replace(own, format=replace(format, fp8_dtype=FNUZ))))
        assert "not quantised" in str(run.reason(replace(own, format=replace(format, fp8_dtype=None))))
        assert "aiter needs 128" in str(run.reason(replace(own, format=replace(format, head_dim=64, group=64))))
        paged = PagedLogits(
            q=queries("gfx950", 1, 1),
            cache=own.cache,
            format=format,
            weights=torch.zeros(1, HEADS),
            context_lens=torch.tensor([20]).int(),
            block_table=case.block_table(),
            max_model_len=32,
            out=torch.zeros(1, 256),
        )
        assert run.reason(paged) is None
        assert "multiple of 256" in str(run.reason(replace(paged, out=torch.zeros(1, 32))))
        normal = replace(format, layout=KeyLayout.NORMAL)
        assert "shuffled only" in str(run.reason(replace(paged, format=normal)))
        assert "16 heads" in str(run.reason(replace(paged, q=paged.q[:, :, :16].contiguous())))
        wide = torch.zeros(1, 2, 4, dtype=torch.int32)
        assert "block_table" in str(run.reason(replace(paged, block_table=wide[:, :, 0])))
        topk = TopkRows(logits=torch.zeros(2, 256), starts=None, ends=wide[0, :, 0].contiguous(), topk=4, out=wide[0])
        assert run.reason(topk) is None
        assert "strides (4, 1)" in str(run.reason(replace(topk, topk=2, out=wide[0, :, :2])))
        assert "scores" in str(run.reason(chunk(FNUZ))) and run.reason(chunk(FN)) is None


def chunk(dtype: torch.dtype) -> ChunkLogits:
    """Return a small chunk in one flavour."""
    none = torch.zeros(1, dtype=torch.int32)
    return ChunkLogits(
        q=torch.zeros(1, HEADS, DIM).to(dtype),
        k=torch.zeros(4, DIM).to(dtype),
        k_scale=torch.ones(4),
        weights=torch.ones(1, HEADS),
        starts=none,
        ends=none + 4,
    )
