"""The planner of persistent work: buffer sizes, and the serial walk over compute units, in the real layout."""

from __future__ import annotations

import torch

from mla_contract.testing.aiter_double.chip import AiterAbort, Arguments, Chip

OVERHEAD = 16
"""What a work item costs on top of its blocks, at a page size of one."""


def get_mla_metadata_info_v1(chip: Chip, a: Arguments) -> tuple[tuple[int | tuple[int, ...], torch.dtype], ...]:
    """Return size and element type of the six buffers; vectors have an int for a size."""
    _only_fast(a)
    heads, rows = a["num_head_qo"], a["batch_size"] * a["max_seqlen_qo"]
    if heads % 8:
        raise AssertionError(f"num_head_qo={heads} is not a multiple of 8")
    units, tiles = chip.num_cus, _tiles(chip, a)
    partial = min(rows + units - 1, 2 * (units - 1)) * tiles
    most = a.get("max_split_per_batch", -1)
    if most > 0:
        partial = max(partial, rows * tiles + min(units, most * rows))
    return (
        (2, torch.uint64),
        (units + 1, torch.int32),
        (((rows + units - 1) * tiles, 8), torch.int32),
        (rows * tiles + 1, torch.int32),
        ((rows * tiles, 2), torch.int32),
        (partial, torch.int32),
    )


def get_mla_metadata_v1(chip: Chip, a: Arguments) -> None:
    """Plan ragged rows of one token into the six buffers."""
    _only_fast(a)
    if a["topk"] >= 0 or a["max_seqlen_qo"] != 1 or a.get("page_size", 1) != 1:
        raise NotImplementedError("the double plans ragged rows of one token and pages of one")
    heads, gran = a["num_heads_per_head_k"] * a["num_heads_k"], a["kv_granularity"]
    q = torch.bfloat16 if a.get("dtype_q") is None else a["dtype_q"]
    kv = torch.bfloat16 if a.get("dtype_kv") is None else a["dtype_kv"]
    any_heads = chip.arch == "gfx950" and chip.pair(q, kv) == ("bf16", "bf16")
    _check(chip, heads % 16 == 0 or any_heads, f"{heads} heads")
    _check(chip, gran & (gran - 1) == 0, f"kv_granularity={gran}")
    for name in ("seqlens_qo_indptr", "seqlens_kv_indptr", "kv_last_page_lens"):
        index = a.get(name)
        _check(
            chip,
            index is None or (index.dtype is torch.int32 and index.stride(0) == 1),
            f"{name} is not contiguous int32",
        )
    fold = chip.fold(*chip.pair(q, kv), heads)
    _check(chip, fold == 1 or a["uni_seqlen_qo"] >= 1, "folding needs uni_seqlen_qo")
    bounds = a["seqlens_kv_indptr"].tolist()
    virtual = [span for span in zip(bounds[:-1], bounds[1:], strict=True) for _ in range(fold)]
    indptr, works = plan(virtual, gran, chip.num_cus, a["max_split_per_batch"])
    _store(a, indptr, works, len(virtual))


def plan(
    rows: list[tuple[int, int]], gran: int, units: int, most: int = -1
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the prefix sum of works by unit, and (row, kv_start, kv_end) of each work.

    Args:
        rows: Range of KV positions of each virtual row.
        gran: Positions of one block.
        units: Compute units.
        most: Budget of units by row; negative for none.
    """
    blocks = [-(-(end - start) // gran) for start, end in rows]
    used = units if most < 0 else max(1, min(units, most * len(rows)))
    budget = -(-sum(count + OVERHEAD for count in blocks) // used) + OVERHEAD
    works: list[tuple[int, int, int]] = []
    indptr, row, done = [0], 0, 0
    for _ in range(units):
        left = budget
        while row < len(rows):
            start, end = rows[row]
            rest, first = blocks[row] - done, start + done * gran
            if rest + OVERHEAD <= left:
                works.append((row, min(first, end), end))
                left -= rest + OVERHEAD
                row, done = row + 1, 0
                continue
            if left > OVERHEAD:
                done += left - OVERHEAD
                works.append((row, first, start + done * gran))
            break
        indptr.append(len(works))
    if row < len(rows):
        raise AiterAbort("the planner ran out of compute units")
    return indptr, works


def _store(a: Arguments, indptr: list[int], works: list[tuple[int, int, int]], num_rows: int) -> None:
    """Write a plan into the buffers; what no work owns keeps its bytes."""
    ends = a["seqlens_kv_indptr"].tolist()[1:]
    fold = num_rows // max(len(ends), 1)
    pieces = [0] * num_rows
    for row, _, _ in works:
        pieces[row] += 1
    items: list[list[int]] = []
    partial_map: list[int] = []
    steps = [0] * num_rows
    for row, start, end in works:
        partial = -1
        if pieces[row] > 1:
            partial = len(partial_map)
            partial_map.append(partial)
            steps[row] += 1
            a["reduce_final_map"][row] = torch.tensor([row, row + 1], dtype=torch.int32)
        items.append([row, partial, row, row + 1, start, end, ends[row // fold] - end, 0])
    info, reduce_indptr = a["work_info_set"], a["reduce_indptr"]
    if len(items) > len(info) or len(partial_map) > len(a["reduce_partial_map"]) or num_rows >= len(reduce_indptr):
        raise AiterAbort("the plan does not fit the buffers")
    a["work_indptr"][: len(indptr)] = torch.tensor(indptr, dtype=torch.int32)
    if items:
        info[: len(items)] = torch.tensor(items, dtype=torch.int32)
    a["reduce_partial_map"][: len(partial_map)] = torch.tensor(partial_map, dtype=torch.int32)
    reduce_indptr[0] = 0
    reduce_indptr[1 : num_rows + 1] = torch.tensor(steps, dtype=torch.int32).cumsum(0)
    reduce_indptr[num_rows + 1 :] = len(partial_map)
    addresses = torch.tensor([a["work_indptr"].data_ptr(), info.data_ptr()])
    a["work_metadata_ptrs"].view(torch.int64).copy_(addresses)


def _tiles(chip: Chip, a: Arguments) -> int:
    """Return the query tiles of a row, which only size the buffers."""
    heads, pair = a["num_head_qo"], chip.pair(a["q_dtype"], a["kv_dtype"])
    fold = chip.fold(*pair, heads)
    if fold == 1 and chip.arch == "gfx950" and pair[0] == pair[1]:
        return {32: 2, 48: 3}.get(heads, 1)
    return fold


def _only_fast(a: Arguments) -> None:
    """Refuse modes that the sparse path does not use."""
    if not a["fast_mode"] or a["intra_batch_mode"]:
        raise NotImplementedError("the double plans in fast mode")


def _check(chip: Chip, holds: bool, message: str) -> None:
    """Raise as the release does: an exception up to 0.1.19, the end of the process since."""
    if not holds:
        raise AiterAbort(message) if chip.since("0.1.20") else RuntimeError(message)
