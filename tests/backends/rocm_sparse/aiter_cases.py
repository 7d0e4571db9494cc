"""Inputs in aiter's geometry for tests through the double."""

from __future__ import annotations

import torch
from torch import Tensor

from mla_contract.backends.kernels.aiter import AiterDevice, AiterProvider, allocate_work
from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.contract.schema.persistent_work import WorkBuffers, WorkConfig
from mla_contract.contract.schema.provider import FillWork, SizeWork, SparseAttention
from tests.backends.kernels.cases import ragged

BF16, FN, FNUZ = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz
FP8 = {"gfx942": FNUZ, "gfx950": FN}
UNITS = {"gfx942": 304, "gfx950": 256}
TOPK = 80
LENS = [TOPK - 1, TOPK, 0, 1, 17, TOPK, 0]
SCALE = 576**-0.5

BF16_TOLERANCE = 1.6e-2
"""Outputs below 4 in magnitude, rounded once from float32; head padding and split partials add nothing."""
FP8_TOLERANCE = 0.15
"""The probabilities are rounded to e4m3 on top of that: up to a sixteenth of values of about 5."""
LSE_TOLERANCE = 1e-4
"""The LSE is float32 throughout."""


def provider(arch: str) -> AiterProvider:
    """Return the provider for a pretended GPU whose tensors are on the CPU."""
    return AiterProvider(AiterDevice(arch, "cpu"))


def inputs(
    heads: int,
    q_dtype: torch.dtype = BF16,
    kv_dtype: torch.dtype = BF16,
    *,
    lens: list[int] = LENS,
    lse: bool = False,
    invalid: bool = False,
    sinks: bool = False,
    work: WorkBuffers | None = None,
) -> SparseAttention:
    """Return an attention over random slots, some -1 when ``invalid``."""
    generator = torch.Generator().manual_seed(heads)
    kv = torch.randn(96, 576, generator=generator).to(kv_dtype)
    q = torch.randn(len(lens), heads, 576, generator=generator).to(q_dtype)
    indptr, indices = ragged(lens, 96, heads)
    if invalid:
        indices[::5] = -1
    narrow_q, narrow_kv = q_dtype.itemsize == 1, kv_dtype.itemsize == 1
    return SparseAttention(
        q=q,
        kv_cache=kv,
        kv_indptr=indptr,
        kv_indices=indices,
        out=torch.full((len(lens), heads, 512), 9.0, dtype=BF16),
        softmax_scale=SCALE,
        lse=torch.full((len(lens), heads), 9.0) if lse else None,
        sinks=torch.randn(heads, generator=generator) if sinks else None,
        q_scale=torch.tensor([0.75]) if narrow_q else None,
        kv_scale=torch.tensor([1.25]) if narrow_kv else None,
        work=work,
        has_invalid=invalid,
    )


def given_work(run: AiterProvider, config: WorkConfig, kv_indptr: Tensor) -> WorkBuffers:
    """Return buffers that are sized and filled for a batch."""
    buffers = allocate_work(config, run.run(SizeWork(config=config)), "cpu")
    run.run(FillWork(buffers=buffers, kv_indptr=kv_indptr))
    return buffers


def differences(run: AiterProvider, case: SparseAttention) -> tuple[float, float]:
    """Return the largest differences of output and LSE from the reference, after running ``case``."""
    wanted, wanted_lse = torch.empty(case.out.shape), torch.empty(case.q.shape[:2])
    ReferenceProvider().run(
        SparseAttention(
            q=case.q,
            kv_cache=case.kv_cache,
            kv_indptr=case.kv_indptr,
            kv_indices=case.kv_indices,
            out=wanted,
            softmax_scale=case.softmax_scale,
            lse=wanted_lse,
            sinks=case.sinks,
            q_scale=case.q_scale,
            kv_scale=case.kv_scale,
        )
    )
    run.run(case)
    off = float((case.out.float() - wanted).abs().max()) if len(wanted) else 0.0
    if case.lse is None:
        return off, 0.0
    empty = torch.isneginf(wanted_lse)
    assert torch.equal(torch.isneginf(case.lse), empty)
    live = (case.lse - wanted_lse)[~empty]
    return off, float(live.abs().max()) if live.numel() else 0.0
