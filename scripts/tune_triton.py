"""Measure launch configurations of the Triton kernels on this GPU, and write the best into the launch table.

Run from the root: ``python -m scripts.tune_triton [--class NAME ...] [--write]``. Kernels are compiled by parallel
processes first. A candidate's figure is the geometric mean, over the class's cases, of its time over the best time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from benchmarks import gpu_cases as cases
from benchmarks.gpu_timing import median_us, rotations
from mla_contract.backends.kernels.triton import launches
from mla_contract.backends.kernels.triton.device import find_device
from mla_contract.backends.kernels.triton.launch_table import ROWS
from mla_contract.backends.kernels.triton.launches import Launch
from mla_contract.backends.kernels.triton.provider import run_on

TABLE_FILE = Path("mla_contract/backends/kernels/triton/launch_table.py")

QUOTE, DOUBLE = "'", '"'

TRIAL = "trial"
"""Architecture under which a candidate stands in the table while it is measured."""


def attend(heads: int, rows: int) -> Callable[[], list[cases.Case]]:
    """Return a maker of rotating attentions."""

    def make() -> list[cases.Case]:
        kv = cases.pool()
        first = cases.attention(kv, rows, heads)
        return [first, *(cases.attention(kv, rows, heads, seed) for seed in range(1, rotations(first.num_bytes)))]

    return make


def twice(make: Callable[[], cases.Case]) -> Callable[[], list[cases.Case]]:
    """Return a maker of one input that is used again: it exceeds the caches."""
    return lambda: [make()] * 2


CASES: Mapping[str, list[Callable[[], list[cases.Case]]]] = {
    "attend_16": [attend(16, rows) for rows in (1, 8, 64, 256, 1024)],
    "attend_32": [attend(32, rows) for rows in (4, 256, 1024)],
    "attend_64": [attend(128, rows) for rows in (1, 8, 64, 256, 1024)],
    "chunk_8bit": [twice(lambda: cases.chunk(1024, 65536)), twice(lambda: cases.chunk(200, 32768))],
    "chunk_16bit": [twice(lambda: cases.chunk(1024, 65536, cases.BF16))],
    "paged_8bit": [
        twice(lambda: cases.paged(4, 131072)),
        twice(lambda: cases.paged(64, 16384)),
        twice(lambda: cases.paged(64, 16384, 2)),
    ],
    "gather": [twice(lambda: cases.gather(8, 65536))],
    "topk": [twice(lambda rows=rows: cases.topk(rows, 131072)) for rows in (1, 8, 64)]  # type: ignore[misc]
    + [twice(lambda: cases.topk(1024, 65536))],
}
"""Shape class to its cases."""


def grid(**axes: tuple[int, ...]) -> list[Launch]:
    """Return every combination of the axes."""
    return [Launch(**dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())]


CANDIDATES: Mapping[str, list[Launch]] = {
    "attend_16": [
        *grid(rows=(16,), columns=(32,), warps=(4,), stages=(2, 3), programs=(132, 264)),
        *grid(rows=(16,), columns=(64,), warps=(4, 8), stages=(2, 3), programs=(132, 264)),
        *grid(rows=(16,), columns=(128,), warps=(8,), stages=(2,), programs=(132,)),
    ],
    "attend_32": [
        *grid(rows=(32,), columns=(32, 64), warps=(4, 8), stages=(2, 3), programs=(132,)),
        *grid(rows=(64,), columns=(64,), warps=(8,), stages=(2,), programs=(132,), tiled=(True,)),
    ],
    "attend_64": [
        *grid(rows=(64,), columns=(64,), warps=(8,), stages=(2,), programs=(132,), tiled=(False, True)),
        *grid(rows=(64,), columns=(32,), warps=(8,), stages=(2, 3), programs=(132,), tiled=(True,)),
        *grid(rows=(32,), columns=(64,), warps=(8,), stages=(2,), programs=(264,)),
    ],
    "chunk_8bit": [
        *grid(rows=(128, 256), columns=(128,), warps=(4, 8), stages=(2, 3), programs=(1056,)),
        *grid(rows=(128, 256), columns=(64,), warps=(4,), stages=(3,), programs=(1056,)),
        *grid(rows=(64,), columns=(128, 256), warps=(4,), stages=(3,), programs=(2112,)),
    ],
    "chunk_16bit": [
        *grid(rows=(128, 256), columns=(128,), warps=(4, 8), stages=(2, 3), programs=(1056,)),
        *grid(rows=(128, 256), columns=(64,), warps=(4,), stages=(3,), programs=(1056,)),
    ],
    "paged_8bit": [
        *grid(rows=(64, 128), columns=(64, 128), warps=(4,), stages=(2, 3, 4), programs=(528,)),
        *grid(rows=(64, 128), columns=(128, 256), warps=(8,), stages=(2, 3), programs=(528,)),
    ],
    "gather": grid(rows=(16, 32, 64, 128), warps=(2, 4, 8)),
    "topk": grid(columns=(2048, 4096), warps=(4, 8), programs=(132, 264, 528)),
}
"""Shape class to what is tried."""


def set_trial(shape_class: str, launch: Launch) -> None:
    """Let the kernels use a candidate for one class."""
    launches.TABLE = MappingProxyType({**launches.TABLE, TRIAL: {shape_class: launch}})


def timed(shape_class: str, launch: Launch, made: list[cases.Case], replays: int) -> float:
    """Return the time of a candidate in microseconds, infinite when it does not fit the device."""
    device = find_device("cuda", torch.cuda.current_device())
    if isinstance(device, str):
        raise SystemExit(device)
    set_trial(shape_class, launch)
    trial = replace(device, arch=TRIAL)
    calls: list[Callable[[], Any]] = [lambda case=case: run_on(case.inputs, trial) for case in made]  # type: ignore[misc]
    try:
        return median_us(calls, replays)[0]
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises, the candidate is out
        print(f"  {launch}: {type(error).__name__} {str(error)[:90]}", file=sys.stderr)
        return math.inf


def compile_one(job: tuple[str, Launch]) -> None:
    """Compile a candidate for the smallest and the largest case of its class, in a process of its own."""
    shape_class, launch = job
    for make in {CASES[shape_class][0], CASES[shape_class][-1]}:
        timed(shape_class, launch, make()[:1], 1)


def measure(shape_class: str) -> Iterator[tuple[Launch, list[float]]]:
    """Measure all candidates of a class, case by case."""
    found: dict[Launch, list[float]] = {launch: [] for launch in CANDIDATES[shape_class]}
    for make in CASES[shape_class]:
        made = make()
        for launch, times in found.items():
            times.append(timed(shape_class, launch, made, 7))
        del made
        torch.cuda.empty_cache()
    yield from found.items()


def table_text(best: Mapping[str, Launch]) -> str:
    """Return the table's module with this device's rows replaced by the best candidates."""
    device = find_device("cuda", torch.cuda.current_device())
    arch = device if isinstance(device, str) else device.arch
    rows = {**ROWS, arch: {**ROWS.get(arch, {}), **{name: asdict(launch) for name, launch in best.items()}}}
    text = TABLE_FILE.read_text()
    lines = [text[: text.index("ROWS: ")] + text[text.index("ROWS: ") :].partition("\n")[0]]
    for name, classes in rows.items():
        lines.append(f"    {json.dumps(name)}: {{")
        lines.extend(
            f"        {json.dumps(one)}: {str(given).replace(QUOTE, DOUBLE)}," for one, given in classes.items()
        )
        lines.append("    },")
    return "\n".join([*lines, "}", ""])


def main() -> None:
    """Measure, print and perhaps write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--class", dest="classes", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--write", type=Path, nargs="?", const=TABLE_FILE, help="rewrite the table, or write it here")
    parser.add_argument("--jobs", type=int, default=8, help="compiling processes")
    parser.add_argument("--json", type=Path, help="where all figures go")
    chosen = parser.parse_args()
    jobs = [(name, launch) for name in chosen.classes for launch in CANDIDATES[name]]
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as compilers:
        list(compilers.map(compile_one, jobs))
    best: dict[str, Launch] = {}
    everything: dict[str, list[tuple[str, list[float]]]] = {}
    for name in chosen.classes:
        figures = dict(measure(name))
        least = [min(times[index] for times in figures.values()) for index in range(len(CASES[name]))]
        ranked = sorted(
            figures, key=lambda one: math.prod(time / low for time, low in zip(figures[one], least, strict=True))
        )
        best[name] = ranked[0]
        everything[name] = [(str(launch), [round(time, 1) for time in figures[launch]]) for launch in ranked]
        for text, times in everything[name][:6]:
            print(f"{name:12} {text:70} {times}", flush=True)
        if chosen.json:
            chosen.json.write_text(json.dumps(everything, indent=1))
    if chosen.write:
        chosen.write.write_text(table_text(best))


if __name__ == "__main__":
    main()
