"""Writing and gathering keys, and mapping positions, bit for bit against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mla_contract.contract.schema.provider import (
    GatherIndexerK,
    IndexerCacheFormat,
    KernelProvider,
    KeyLayout,
    MapSlots,
    WriteIndexerK,
)
from tests.backends.kernels.cases import Case
from tests.backends.kernels.triton.cases import REFERENCE, on

LENS = (31, 32, 0, 33, 101)


def formats(flavour: torch.dtype) -> list[IndexerCacheFormat]:
    """Return both layouts, one and two groups, and both kinds of scales of a flavour."""
    return [
        IndexerCacheFormat(head_dim=32, fp8_dtype=flavour, layout=layout, group=group, power_of_two_scale=power)
        for layout, group, power in ((KeyLayout.NORMAL, 32, True), (KeyLayout.SHUFFLE, 32, True))
        + ((KeyLayout.NORMAL, 16, False), (KeyLayout.SHUFFLE, 16, True))
    ]


def block_of(format: IndexerCacheFormat) -> int:
    """Return a page's tokens: one tile of the shuffled layout, or more, in turn with the other choices."""
    return 64 if (format.layout is KeyLayout.SHUFFLE) == format.power_of_two_scale else 16


def keys_of(dim: int) -> Tensor:
    """Return keys of many magnitudes: zeros, subnormal ones, and exact ties between two fp8 numbers."""
    keys = torch.randn(sum(LENS), dim, generator=torch.Generator().manual_seed(5)) * 3
    keys[3] = 0.0
    keys[4] = keys[4] * 1e-7
    keys[6] = torch.exp2(torch.arange(dim) * -1.0) * 1.0625
    keys[7, ::2] *= 1e-4
    return keys


def write(format: IndexerCacheFormat, block_size: int, dtype: torch.dtype) -> WriteIndexerK:
    """Return a write into a poisoned cache, in which one token has no slot and three keys are surplus."""
    case = Case(LENS, block_size)
    slots = case.slot_mapping()
    slots[5] = -1
    kind = torch.float32 if format.fp8_dtype is None else torch.uint8
    cache = torch.full((case.num_blocks, block_size, format.width), 7, dtype=kind)
    return WriteIndexerK(k=keys_of(format.head_dim).to(dtype), slot_mapping=slots[:-3], cache=cache, format=format)


def test_write_is_bitwise_the_reference(
    kernels: KernelProvider,
    place: torch.device,
    flavours: tuple[torch.dtype, ...],
) -> None:
    """Every byte of the cache agrees, those that are not written included."""
    for flavour in flavours:
        for format in formats(flavour):
            wanted = write(format, block_of(format), torch.bfloat16 if format.group == 16 else torch.float32)
            got = on(wanted, place)
            kernels.run(got)
            REFERENCE.run(wanted)
            assert torch.equal(got.cache.cpu(), wanted.cache), format


def test_write_one_token_pages_and_float_caches(
    kernels: KernelProvider, place: torch.device, flavours: tuple[torch.dtype, ...]
) -> None:
    """Pages of one token, and caches that are not quantised, agree bit for bit."""
    quantised = [IndexerCacheFormat(head_dim=32, fp8_dtype=one, group=32) for one in flavours[:1]]
    for format in (*quantised, IndexerCacheFormat(head_dim=20, fp8_dtype=None)):
        wanted = write(format, 1, torch.float32)
        got = on(wanted, place)
        kernels.run(got)
        REFERENCE.run(wanted)
        assert torch.equal(got.cache.cpu(), wanted.cache), format


def test_gather_is_bitwise_the_reference(
    kernels: KernelProvider, place: torch.device, flavours: tuple[torch.dtype, ...]
) -> None:
    """Values and scales agree; rows behind the chunk's keys keep their poison."""
    total = sum(LENS)
    plain = IndexerCacheFormat(head_dim=20, fp8_dtype=None)
    for format in [*(one for flavour in flavours for one in formats(flavour)), plain]:
        case = Case(LENS, block_of(format))
        cache = write(format, case.block_size, torch.float32)
        REFERENCE.run(cache)
        quantised = format.fp8_dtype is not None
        wanted = GatherIndexerK(
            cache=cache.cache,
            format=format,
            block_table=case.block_table(),
            cu_seq_lens=torch.tensor([0, *LENS]).cumsum(0).int(),
            num_keys=total,
            k_out=torch.full((total + 3, format.head_dim), 9, dtype=torch.uint8 if quantised else torch.float32),
            scale_out=torch.full((total + 3, format.groups), 9.0) if quantised else None,
        )
        got = on(wanted, place)
        kernels.run(got)
        REFERENCE.run(wanted)
        assert torch.equal(got.k_out.cpu(), wanted.k_out), format
        assert wanted.scale_out is None or got.scale_out is None or torch.equal(got.scale_out.cpu(), wanted.scale_out)


@pytest.mark.parametrize("block_size", [1, 16, 60])
def test_map_equals_reference(kernels: KernelProvider, place: torch.device, block_size: int) -> None:
    """Padding, negative blocks and positions behind the table become -1."""
    generator = torch.Generator().manual_seed(1)
    wanted = MapSlots(
        positions=torch.randint(-1, 14 * block_size, (9, 40), generator=generator).int(),
        req_id_per_token=torch.randint(0, 4, (9,), generator=generator).int(),
        block_table=torch.randint(-1, 50, (4, 12), generator=generator).int(),
        block_size=block_size,
        out=torch.full((9, 40), -5, dtype=torch.int32),
    )
    got = on(wanted, place)
    kernels.run(got)
    REFERENCE.run(wanted)
    assert torch.equal(got.out.cpu(), wanted.out)
    assert (wanted.out == -1).any() and (wanted.out >= 0).any()
