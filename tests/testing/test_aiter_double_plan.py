"""The work plans of the double, and the check of work plans on them and on planted corruptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mla_contract.backends.kernels.aiter import AiterDevice, AiterProvider, allocate_work
from mla_contract.contract.clauses.work_plan import check_work_metadata
from mla_contract.contract.schema.persistent_work import WorkBuffers, WorkConfig
from mla_contract.contract.schema.provider import FillWork, SizeWork
from mla_contract.testing.aiter_double import install

BF16, FNUZ = torch.bfloat16, torch.float8_e4m3fnuz
LENS = [700, 3, 0, 128, 16, 17, 1, 0]
ARRAYS = ("work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map", "reduce_partial_map")


def planned(
    lens: list[int] = LENS, heads: int = 32, dtype: torch.dtype = BF16, units: int = 12, most: int = -1
) -> WorkBuffers:
    """Return work that the double planned for gfx942."""
    config = WorkConfig(num_rows=len(lens), num_heads=heads, q_dtype=dtype, kv_dtype=dtype, max_split_per_batch=most)
    with install("0.1.20", "gfx942", num_cus=units):
        run = AiterProvider(AiterDevice("gfx942", "cpu"))
        work = allocate_work(config, run.run(SizeWork(config=config)), "cpu")
        run.run(FillWork(buffers=work, kv_indptr=torch.tensor([0, *lens]).cumsum(0).int()))
    return work


def codes(work: Any, fold: int = 2, granularity: int = 16, kv_indptr: torch.Tensor | None = None) -> set[str]:
    """Return the codes that a plan breaks."""
    offsets = work.kv_indptr if kv_indptr is None else kv_indptr
    return {one.code for one in check_work_metadata(work, offsets, fold=fold, granularity=granularity)}


@pytest.mark.parametrize("seed", range(30))
def test_plan_random_rows_holds(seed: int) -> None:
    """Plans of random rows hold, folded or native, for any budget of splits and few or many compute units."""
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 40, (1,), generator=generator))
    lens = torch.randint(0, [3, 60, 2049][seed % 3], (count,), generator=generator).tolist()
    heads, fold = [(16, 1), (32, 2), (96, 6)][seed // 3 % 3]
    assert codes(planned(lens, heads, units=[4, 80, 304][seed % 3], most=[-1, 1, 16][seed // 2 % 3]), fold) == set()


def test_plan_native_coarse_kernel_holds_in_its_granularity() -> None:
    """64 fp8 heads on gfx942 are one virtual row a token, cut in blocks of 32."""
    assert codes(planned(heads=64, dtype=FNUZ), fold=1, granularity=32) == set()


def test_plan_without_element_types_is_reported_as_the_wrong_fold() -> None:
    """A planner that is not told the element types folds what the kernel does not; the check sees foreign rows."""
    work = planned(heads=64, dtype=FNUZ)
    with install("0.1.20", "gfx942", num_cus=12) as double:
        double.module.get_mla_metadata_v1(
            work.qo_indptr, work.kv_indptr, work.kv_last_page_lens, 64, 1, True, work.work_meta_data,
            allocated := torch.zeros(400, 8, dtype=torch.int32), work.work_indptr, torch.zeros(40, dtype=torch.int32),
            torch.zeros(40, 2, dtype=torch.int32), torch.zeros(400, dtype=torch.int32),
            kv_granularity=32, max_seqlen_qo=1, uni_seqlen_qo=1,
        )  # fmt: skip
    assert "MLA293" in codes(replace(work, work_info_set=allocated), fold=1, granularity=32)


def test_plan_every_live_number_is_pinned() -> None:
    """Changing any live number of any buffer by one is reported; the control, an unused tail, is not."""
    good = planned()
    assert codes(good) == set()
    works = int(good.work_indptr[-1])
    total = int(good.reduce_indptr[-1])
    split = (good.reduce_indptr.diff() > 0).nonzero().flatten().tolist()
    live: list[tuple[str, tuple[int, ...]]] = [
        ("work_info_set", (row, column)) for row in range(works) for column in range(8)
    ]
    live += [("reduce_indptr", (row,)) for row in range(len(good.reduce_indptr))]
    live += [("reduce_partial_map", (row,)) for row in range(total)]
    live += [("reduce_final_map", (row, column)) for row in split for column in range(2)]
    live += [("work_indptr", (0,)), ("work_indptr", (-1,)), ("work_meta_data", (0,)), ("work_meta_data", (1,))]
    assert total > 2 and len(split) > 1
    for name, place in live:
        for step in (-1, 1):
            work = changed(good, name, place, step)
            assert codes(work), (name, place, step)
    tails: list[tuple[str, tuple[int, ...]]] = [("work_info_set", (works, 4)), ("reduce_partial_map", (total,))]
    for name, place in tails:
        assert codes(changed(good, name, place, 1)) == set(), name


def changed(work: WorkBuffers, name: str, place: tuple[int, ...], step: int) -> WorkBuffers:
    """Return work with one number changed, and the addresses that go with it."""
    array = getattr(work, name).clone()
    flat = array.view(torch.int64) if array.dtype is torch.uint64 else array
    flat[place] += step
    found = replace(work, **{name: array})
    if name in ("work_info_set", "work_indptr"):
        addresses = torch.tensor([found.work_indptr.data_ptr(), found.work_info_set.data_ptr()])
        found = replace(found, work_meta_data=addresses.view(torch.uint64))
    return found


@pytest.mark.parametrize(
    ("code", "corrupt"),
    [
        ("MLA291", lambda work: replace(work, kv_indptr=work.kv_indptr + 1)),
        ("MLA292", lambda work: replace(work, work_indptr=work.work_indptr.flip(0).contiguous())),
        ("MLA293", lambda work: replace(work, kv_indptr=(work.kv_indptr * 2).int())),
        ("MLA295", lambda work: replace(work, reduce_indptr=torch.zeros_like(work.reduce_indptr))),
        ("MLA296", lambda work: replace(work, reduce_partial_map=work.reduce_partial_map[:1])),
        ("MLA298", lambda work: replace(work, work_info_set=work.work_info_set.clone())),
    ],
)
def test_plan_corruption_names_its_clause(code: str, corrupt: Any) -> None:
    """Each kind of corruption is reported under its own code."""
    work = corrupt(planned())
    assert code in codes(work)


def test_plan_of_another_step_is_reported() -> None:
    """A plan that was not refilled when a length changed does not cover the rows of now."""
    lens = [length + 1 for length in LENS]
    assert "MLA293" in codes(planned(), kv_indptr=torch.tensor([0, *lens]).cumsum(0).int())


def test_plan_report_carries_axes_and_help() -> None:
    """A report names the field, the axes and what to do."""
    work = planned()
    text = check_work_metadata(work, work.kv_indptr + 1, fold=2)[0].render()
    assert "WorkBuffers.kv_indptr" in text and "num_rows=8" in text and "mla-contract explain MLA291" in text
