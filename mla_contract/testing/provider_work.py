"""Certifies persistent work: sized, filled into poisoned buffers, and handed to the attention, which must be right.

No other provider plans such work, so there is nothing to compare a plan with: what counts is the attention's result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from mla_contract.contract.schema.persistent_work import WorkBuffers, WorkConfig, WorkSizes
from mla_contract.contract.schema.provider import FillWork, KernelProvider, SizeWork, SparseAttention
from mla_contract.testing.provider_cases import ProviderCase
from mla_contract.testing.provider_equality import POISON_BYTE
from mla_contract.testing.provider_suite import CaseVerdict, ProviderFault, certify

MARGIN = 8
"""Rows behind each buffer that a fill may not write."""
SIX = tuple(one.name for one in fields(WorkSizes))


def certify_work(provider: KernelProvider, case: ProviderCase, device: str = "cpu") -> Iterator[CaseVerdict]:
    """Yield what is said of sizes, of the fill, and of the attention with the filled work.

    Args:
        provider: The provider.
        case: An attention whose entries are all valid.
        device: Where the arrays are.
    """
    attention: Any = case.make()
    config = WorkConfig(
        num_rows=len(attention.q),
        num_heads=attention.q.shape[1],
        q_dtype=attention.q.dtype,
        kv_dtype=attention.kv_cache.dtype,
        with_lse=attention.lse is not None,
        has_empty_rows=attention.has_empty_rows,
    )
    size = SizeWork(config=config)
    try:
        reason = provider.reason(size)
        if reason is not None:
            yield CaseVerdict("SizeWork", case.name, reason)
            return
        sizes: Any = provider.run(size)
        if not isinstance(sizes, WorkSizes):
            fault = ProviderFault("returns no sizes", "SizeWork", "WorkSizes", type(sizes).__name__)
            yield CaseVerdict("SizeWork", case.name, None, (fault,))
            return
        yield CaseVerdict("SizeWork", case.name)
        yield from _filled(provider, case, attention, config, sizes, device)
    except Exception as error:  # noqa: BLE001 - the provider is foreign: what it raises is a finding
        fault = ProviderFault("the provider raises", "work", "buffers", f"{type(error).__name__}: {error}")
        yield CaseVerdict("FillWork", case.name, None, (fault,), error)


def _filled(
    provider: KernelProvider,
    case: ProviderCase,
    attention: SparseAttention,
    config: WorkConfig,
    sizes: WorkSizes,
    device: str,
) -> Iterator[CaseVerdict]:
    """Yield the verdicts of the fill and of the attention."""
    whole = {name: _poisoned(getattr(sizes, name), device) for name in SIX}
    own = {name: array[: len(array) - MARGIN] for name, array in whole.items()}
    rows = torch.arange(config.num_rows + 1, dtype=torch.int32, device=device)
    ones = torch.ones(config.num_rows, dtype=torch.int32, device=device)
    buffers = WorkBuffers(
        config=config, qo_indptr=rows, kv_indptr=torch.zeros_like(rows), kv_last_page_lens=ones, **own
    )
    offsets = attention.kv_indptr.to(device)
    fill = FillWork(buffers=buffers, kv_indptr=offsets)
    reason = provider.reason(fill)
    if reason is not None:
        fault = ProviderFault("sizes work that it does not fill", "FillWork", "None", reason)
        yield CaseVerdict("FillWork", case.name, reason, (fault,))
        return
    provider.run(fill)
    faults = [
        ProviderFault("writes behind a buffer", name, f"{len(own[name])} rows as SizeWork says", "more")
        for name, array in whole.items()
        if not bool((array[len(own[name]) :].view(torch.uint8) == POISON_BYTE).all())
    ]
    if not torch.equal(offsets.cpu(), attention.kv_indptr):
        faults.append(ProviderFault("an input is changed", "kv_indptr", "the offsets of before", "others"))
    yield CaseVerdict("FillWork", case.name, None, tuple(faults))
    with_work = ProviderCase(f"{case.name}, planned", lambda: replace(case.make(), work=buffers), case.outputs)  # type: ignore[type-var]
    yield certify(provider, with_work, device)


def _poisoned(size: tuple[tuple[int, ...], torch.dtype], device: str) -> Tensor:
    """Return a buffer and some rows behind it, poisoned."""
    (rows, *rest), dtype = size
    array = torch.empty((rows + MARGIN, *rest), dtype=dtype, device=device)
    array.view(torch.uint8).fill_(POISON_BYTE)
    return array
