"""Where the contract says what an operation leaves, it is what the reference leaves: the comparison, by operation.

Tolerances are of elements, relative to the largest wanted magnitude of the array (at least 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from mla_contract.backends.kernels.reference.pages import read_keys
from mla_contract.contract.schema.provider import (
    ChunkLogits,
    GatherIndexerK,
    MapSlots,
    Operation,
    PagedLogits,
    SparseAttention,
    TopkRows,
    WriteIndexerK,
)

TOLERANCES: Mapping[torch.dtype, float] = MappingProxyType(
    {
        torch.float32: 1e-4,
        torch.float16: 4e-3,
        torch.bfloat16: 1.6e-2,
        torch.float8_e4m3fn: 0.04,
        torch.float8_e4m3fnuz: 0.04,
    }
)
"""Of outputs, by the element type of the coarsest operand: two roundings of it; probabilities may be rounded, too."""
LSE_TOLERANCE = 1e-3
"""Of the LSE, which is float32 throughout; to another base it is off by a factor."""
LOGITS_TOLERANCES: Mapping[torch.dtype, float] = MappingProxyType(
    {**dict.fromkeys(TOLERANCES, 1e-3), torch.float32: 1e-5, torch.bfloat16: 2e-3, torch.float16: 2e-3}
)
"""Of logits, by the element type of the queries: sums of exact products in float32, in any order."""
FP8_STEP = 0.13
"""Of a key that was quantised: one step of e4m3, an eighth, where a division rounds otherwise."""

POISON_BYTE = 0xA5
"""What a kernel does not write keeps this: for integers, bytes and fp8; floats are poisoned with NaN."""
_POISONED = (POISON_BYTE, int.from_bytes([POISON_BYTE] * 4, "little", signed=True))

Difference = tuple[str, str, str, str]
"""What, where, expected, got."""


def differences(inputs: Operation[Any], result: Any, wanted: Operation[Any], right: Any) -> list[Difference]:
    """Return where a provider's outputs differ from the reference's.

    Args:
        inputs: The operation that the provider ran.
        result: What it returned.
        wanted: The same operation, run by the reference on the host.
        right: What the reference returned.
    """
    return _COMPARE[type(inputs)](inputs, result, wanted, right)


def _close(name: str, got: Tensor, wanted: Tensor, tolerance: float, defined: Tensor | None = None) -> list[Difference]:
    """Return the first element that is further off than it may be, or not a number where one is wanted."""
    got, wanted = got.cpu().float(), wanted.float()
    if got.shape != wanted.shape:
        return [("has another shape", name, f"{tuple(wanted.shape)}", f"{tuple(got.shape)}")]
    finite = wanted[torch.isfinite(wanted)]
    bound = tolerance * max(1.0, float(finite.abs().max()) if finite.numel() else 1.0)
    wrong = ~((got == wanted) | ((got - wanted).abs() <= bound))
    if defined is not None:
        wrong &= defined
    if not bool(wrong.any()):
        return []
    place = tuple(wrong.nonzero()[0].tolist())
    number, value = int(wrong.sum()), float(got[place])
    what = "is not written, or not a number" if value != value else "differs from the reference"
    where = f"{name}[{', '.join(map(str, place))}]"
    return [
        (what, where, f"{float(wanted[place]):.6g} within {bound:.2g}", f"{value:.6g}   ({number} elements in all)")
    ]


def _equal(name: str, got: Tensor, wanted: Tensor) -> list[Difference]:
    """Return the first integer that differs."""
    got = got.cpu()
    if got.shape != wanted.shape:
        return [("has another shape", name, f"{tuple(wanted.shape)}", f"{tuple(got.shape)}")]
    wrong = got != wanted
    if not bool(wrong.any()):
        return []
    place = tuple(wrong.nonzero()[0].tolist())
    where = f"{name}[{', '.join(map(str, place))}]"
    number = f"({int(wrong.sum())} elements in all)"
    value = got[place].item()
    what = "is not written" if value in _POISONED else "differs from the reference"
    return [(what, where, f"{wanted[place].item()}", f"{value}   {number}")]


def _map(inputs: MapSlots, result: Any, wanted: MapSlots, right: Any) -> list[Difference]:
    return _equal("out", inputs.out, wanted.out)


def _topk(inputs: TopkRows, result: Any, wanted: TopkRows, right: Any) -> list[Difference]:
    """Compare rows in order where they have no more candidates than top-k, and as sets where they have."""
    got, best = inputs.out.cpu().clone(), wanted.out.clone()
    ends, starts = wanted.ends, wanted.starts
    lens = ends if starts is None else ends - starts
    longer = lens > wanted.topk
    got[longer], best[longer] = got[longer].sort(1).values, best[longer].sort(1).values
    return _equal("out (rows with more candidates than topk sorted)", got, best)


def _attention(inputs: SparseAttention, result: Any, wanted: SparseAttention, right: Any) -> list[Difference]:
    types = (inputs.q.dtype, inputs.kv_cache.dtype, inputs.out.dtype)
    found = _close("out", inputs.out, wanted.out, max(TOLERANCES[dtype] for dtype in types))
    if inputs.lse is not None and wanted.lse is not None:
        found += _close("lse", inputs.lse, wanted.lse, LSE_TOLERANCE)
    return found


def _chunk(inputs: ChunkLogits, result: Any, wanted: ChunkLogits, right: Tensor) -> list[Difference]:
    if not isinstance(result, Tensor):
        return [("returns no logits", "result", "a tensor", type(result).__name__)]
    if len(result) and result.stride(0) % 256:
        return [("row stride is not aligned", "result", "a multiple of 256", f"{result.stride(0)}")]
    column = torch.arange(right.shape[1])
    inside = (column >= wanted.starts[:, None]) & (column < wanted.ends[:, None])
    return _close("result", result[:, : right.shape[1]], right, LOGITS_TOLERANCES[inputs.q.dtype], inside)


def _paged(inputs: PagedLogits, result: Any, wanted: PagedLogits, right: Any) -> list[Difference]:
    next_n = wanted.q.shape[1]
    seen = (wanted.context_lens[:, None] - next_n + 1 + torch.arange(next_n)).flatten()
    inside = torch.arange(wanted.out.shape[1]) < seen[:, None]
    return _close("out", inputs.out, wanted.out, LOGITS_TOLERANCES[inputs.q.dtype], inside)


def _gather(inputs: GatherIndexerK, result: Any, wanted: GatherIndexerK, right: Any) -> list[Difference]:
    """Compare what was gathered to the byte; rows behind it keep what was in them."""
    rows = wanted.num_keys
    found = _equal("k_out as bytes", _bytes(inputs.k_out[:rows]), _bytes(wanted.k_out[:rows]))
    if inputs.scale_out is not None and wanted.scale_out is not None:
        found += _close("scale_out", inputs.scale_out[:rows], wanted.scale_out[:rows], 0.0)
    for name, array in (("k_out", inputs.k_out), ("scale_out", inputs.scale_out)):
        if array is None:
            continue
        behind = array[rows:].cpu()
        poisoned = behind.isnan() if behind.dtype.itemsize > 1 else _bytes(behind) == POISON_BYTE
        if not bool(poisoned.all()):
            found.append(("writes rows behind num_keys", f"{name}[{rows}:]", "what was there before", "other elements"))
    return found


def _write(inputs: WriteIndexerK, result: Any, wanted: WriteIndexerK, right: Any) -> list[Difference]:
    """Compare the cache key by key, and to the byte where nothing is written."""
    cache = inputs.cache.cpu()
    every = torch.arange(cache.shape[0] * cache.shape[1])
    got, scales = read_keys(cache.contiguous(), every, inputs.format)
    best, best_scales = read_keys(wanted.cache, every, inputs.format)
    if scales is None or best_scales is None:
        return _equal("cache as bytes", _bytes(got), _bytes(best))
    found = _close("cache, scales by slot", scales / best_scales, torch.ones_like(scales), 1e-5)
    size = best.float().abs()
    off = (got.float() - best.float()).abs() > FP8_STEP * size + 2**-9
    written = torch.zeros(len(every), dtype=torch.bool)
    written[wanted.slot_mapping[wanted.slot_mapping >= 0]] = True
    off |= (_bytes(got) != _bytes(best)) & ~written[:, None]
    if bool(off.any()):
        slot, dim = off.nonzero()[0].tolist()
        what = "a key differs from the reference" if written[slot] else "a slot is written that no token has"
        expected, value = float(best[slot, dim].float()), float(got[slot, dim].float())
        found.append((what, f"cache, slot {slot}, dim {dim}", f"{expected}", f"{value}   ({int(off.sum())} in all)"))
    return found


def _bytes(array: Tensor) -> Tensor:
    """Return the elements as bytes."""
    return array.cpu().contiguous().view(torch.uint8)


_COMPARE: Mapping[type, Callable[[Any, Any, Any, Any], list[Difference]]] = MappingProxyType(
    {
        MapSlots: _map,
        TopkRows: _topk,
        SparseAttention: _attention,
        ChunkLogits: _chunk,
        PagedLogits: _paged,
        GatherIndexerK: _gather,
        WriteIndexerK: _write,
    }
)
