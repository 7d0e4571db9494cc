"""Sparse decode attention: the kernel without work, the kernel that follows a plan, and the reduction of partials."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mla_contract.testing.aiter_double.chip import FP8_MAX, POISON, Arguments, Chip, require

WIDTH, VALUE_WIDTH = 576, 512
GATE_BATCH = 32
"""Rows from which gfx950 ignores work at 16 bf16 heads."""


def get_meta_param(chip: Chip, a: Arguments) -> tuple[int, Tensor]:
    """Return the splits that the kernel without work would choose, and their prefix sum."""
    splits = a["num_kv_splits"] or max(1, min(16, chip.num_cus // max(a["bs"], 1)))
    return splits, torch.arange(a["bs"] + 1, dtype=torch.int32) * splits


def mla_decode_fwd(chip: Chip, a: Arguments) -> tuple[Tensor, Tensor | None]:
    """Attend in place into ``o``; return (logits, LSE or None)."""
    q, kv, o = a["q"], a["kv_buffer"], a["o"]
    heads, rows = q.shape[1], a["qo_indptr"].shape[0] - 1
    pair = chip.pair(q.dtype, kv.dtype)
    _check_arguments(chip, a, pair)
    o.fill_(POISON)
    lse = torch.full((rows, heads), POISON) if a["return_lse"] else None
    gated = chip.arch == "gfx950" and pair == ("bf16", "bf16") and heads == 16 and a["num_kv_splits"] is None
    gated = gated and rows >= GATE_BATCH and chip.since("0.1.18")
    if a["work_meta_data"] is not None and not gated:
        _with_work(chip, a, pair, lse)
    else:
        _without_work(chip, a, pair, lse)
    return torch.empty(0), lse


def _check_arguments(chip: Chip, a: Arguments, pair: tuple[str, str]) -> None:
    """Abort where the real checks do, and where the code objects would read foreign memory."""
    q, kv, o = a["q"], a["kv_buffer"], a["o"]
    require(a["max_seqlen_q"] == 1 and a.get("page_size", 1) == 1, "the double covers one token and pages of one")
    known = (("bf16", "bf16"), ("bf16", "fp8"), ("fp8", "fp8"))
    require(chip.arch in ("gfx942", "gfx950") and pair in known, f"no kernel for {pair} on {chip.arch}")
    flavours = (one for one in (q.dtype, kv.dtype) if one in FP8_MAX)
    require(all(one is chip.fp8 for one in flavours), "the wrong flavour of fp8 would be reinterpreted")
    require(q.shape[2] == WIDTH and kv.dim() == 4 and kv.shape[1:] == (1, 1, WIDTH), "geometry")
    require(o.shape == (*q.shape[:2], VALUE_WIDTH) and o.dtype is torch.bfloat16, "output")
    require(q.is_contiguous() and o.is_contiguous(), "q and o must be contiguous")
    names = ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_lens")
    require(all(a[name].dtype is torch.int32 and a[name].is_contiguous() for name in names), "index tables")
    require(pair[0] != "fp8" or (a["q_scale"] is not None and a["kv_scale"] is not None), "fp8 needs both scales")
    used = a["kv_indices"][: int(a["kv_indptr"][-1])]
    require(not len(used) or (int(used.min()) >= 0 and int(used.max()) < kv.shape[0]), "a page that does not exist")


def _without_work(chip: Chip, a: Arguments, pair: tuple[str, str], lse: Tensor | None) -> None:
    """Run the kernel that splits by itself; an empty row becomes NaN."""
    heads, rows = a["q"].shape[1], a["qo_indptr"].shape[0] - 1
    require(chip.has_plain(*pair, heads), f"no kernel without work for {pair}, {heads} heads on {chip.arch}")
    splits, _ = get_meta_param(chip, {"num_kv_splits": a["num_kv_splits"], "bs": rows})
    bounds = a["kv_indptr"].tolist()
    for row in range(rows):
        span = (bounds[row], bounds[row + 1])
        if span[0] == span[1]:
            if lse is not None:
                lse[row] = -torch.inf
            continue
        value, own = _attend(a, a["q"][row], *span)
        a["o"][row] = value.to(a["o"].dtype)
        if lse is not None and not (pair[0] == "fp8" and splits == 1):
            lse[row] = own
    ragged = len(set(torch.tensor(bounds).diff().tolist())) > 1
    if lse is not None and chip.arch == "gfx950" and pair[0] == "bf16" and heads == 32 and splits != 1 and ragged:
        lse[-1] = POISON


def _with_work(chip: Chip, a: Arguments, pair: tuple[str, str], lse: Tensor | None) -> None:
    """Run the works of every compute unit, then reduce the tiles; what no work covers stays poisoned."""
    q, heads = a["q"], a["q"].shape[1]
    require(heads % 16 == 0 and heads <= 128, f"no kernel with work for {heads} heads")
    require(lse is None or chip.has_work_lse(*pair, heads), f"no LSE with work for {pair}, {heads} heads")
    info, indptr = a["work_info_set"], a["work_indptr"]
    pointers = a["work_meta_data"].view(torch.int64).tolist()
    require(pointers == [indptr.data_ptr(), info.data_ptr()], "work_meta_data points at other buffers")
    require(indptr.shape[0] == chip.num_cus + 1, "work_indptr has another number of compute units")
    fold = chip.fold(*pair, heads)
    virtual = q.shape[0] * fold
    q_rows = q.view(virtual, heads // fold, WIDTH)
    out = a["o"].view(virtual, heads // fold, VALUE_WIDTH)
    out_lse = None if lse is None else lse.view(virtual, heads // fold)
    slots = a["reduce_partial_map"].shape[0]
    partial = torch.full((slots, heads // fold, VALUE_WIDTH), POISON)
    partial_lse = torch.full((slots, heads // fold), POISON)
    coarse = chip.arch == "gfx942" and pair == ("fp8", "fp8") and heads == 64 and fold == 1
    starts = a["kv_indptr"].tolist()
    for row, place, first, _, start, end, _, _ in info[: int(indptr[-1])].tolist():
        require(0 <= first < virtual and place < slots, "a work item lies outside the output")
        require(not coarse or (start - starts[row]) % 32 == 0, "this kernel reads blocks of 32 positions")
        if start == end:
            continue
        value, own = _attend(a, q_rows[first], start, end)
        if place >= 0:
            partial[place], partial_lse[place] = value, own
            continue
        out[first] = value.to(out.dtype)
        if out_lse is not None:
            out_lse[first] = own
    tables = {name: a[name] for name in ("reduce_indptr", "reduce_final_map", "reduce_partial_map")}
    _reduce(partial, partial_lse, tables, out, out_lse)


def _attend(a: Arguments, q: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Return output and LSE, both float32, of one row over the pages ``[start, end)``."""
    kv = a["kv_buffer"].view(-1, WIDTH)[a["kv_indices"][start:end].long()].float()
    q_scale, kv_scale = _scale(a["q_scale"], q), _scale(a["kv_scale"], a["kv_buffer"])
    sm_scale = WIDTH**-0.5 if a["sm_scale"] is None else a["sm_scale"]
    scores = q.float() @ kv.T * (sm_scale * q_scale * kv_scale)
    most = scores.amax(1, keepdim=True)
    weights = torch.exp(scores - most)
    total = weights.sum(1, keepdim=True)
    if q.dtype in FP8_MAX:
        weights = weights.to(q.dtype).float()
    value = weights @ kv[:, :VALUE_WIDTH] / total * kv_scale
    return value, (most + torch.log(total)).squeeze(1)


def _scale(scale: Tensor | None, owner: Tensor) -> float:
    """Return a scale; those of bf16 are ignored."""
    return float(scale) if scale is not None and owner.dtype in FP8_MAX else 1.0


def mla_reduce_v1(chip: Chip, a: Arguments) -> None:
    """Reduce partial results into ``final_output`` and ``final_lse``."""
    heads = a["final_output"].shape[1]
    require(heads in (8, 16, 24, 32, 48, 64, 80, 96, 112, 128), f"no reduction for {heads} heads")
    partial = a["partial_output"].view(-1, heads, a["final_output"].shape[2])
    tables: dict[str, Any] = {n: a[n] for n in ("reduce_indptr", "reduce_final_map", "reduce_partial_map")}
    _reduce(partial, a["partial_lse"].view(-1, heads), tables, a["final_output"], a["final_lse"])


def _reduce(partial: Tensor, partial_lse: Tensor, tables: Arguments, out: Tensor, lse: Tensor | None) -> None:
    """Merge the partials of each tile; a tile with fewer than two is skipped, also when its row has no other writer."""
    bounds = tables["reduce_indptr"].tolist()
    for tile, (first, last) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        if last - first < 2:
            continue
        places = tables["reduce_partial_map"][first:last].long()
        row = int(tables["reduce_final_map"][tile][0])
        own = partial_lse[places]
        total = torch.logsumexp(own, 0)
        out[row] = (torch.exp(own - total)[:, :, None] * partial[places]).sum(0).to(out.dtype)
        if lse is not None:
            lse[row] = total
