"""The whole-tree audit of one vLLM release, cold and warm, beside mypy on the two files that a user would check.

Correctness comes first: cold and warm have to find the same. Then one row for each case, with wall time, CPU time and
peak memory of the largest process, medians over runs, all in one run on one machine.

Usage: python benchmarks/bench_audit.py [RELEASE] [--runs N]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from mla_contract.audit.source.acquire import fetch_release

CHECKED = (
    "vllm/model_executor/layers/attention/mla_attention.py",
    "vllm/v1/attention/backends/mla/rocm_aiter_mla_sparse.py",
)
MYPY_FLAGS = ("--ignore-missing-imports", "--check-untyped-defs", "--follow-imports=silent", "--no-error-summary")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command: seconds on the clock, seconds of CPU, and the peak of its largest process in MB."""

    wall: float
    cpu: float
    peak_mb: float
    output: str


def measured(command: Sequence[str], env: dict[str, str], cwd: Path) -> Run:
    """Run a command in a process of its own and measure it with its children."""
    script = (
        "import resource, subprocess, sys, json\n"
        "done = subprocess.run(sys.argv[1:], capture_output=True, text=True)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, done.stdout, done.stderr]))\n"
    )
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, env=env, cwd=cwd)
    wall = time.perf_counter() - started
    cpu, peak, output, errors = json.loads(done.stdout)
    return Run(wall, cpu, peak, output or errors)


def row(name: str, runs: Sequence[Run], base: float) -> str:
    """Return a line of the table: median, spread, CPU, peak, and the ratio to a base."""
    walls = sorted(run.wall for run in runs)
    median = statistics.median(walls)
    cpu = statistics.median(run.cpu for run in runs)
    peak = max(run.peak_mb for run in runs)
    spread = f"{walls[0]:.2f}-{walls[-1]:.2f}"
    return f"{name:28} {median:8.2f} s  {spread:>13}  {cpu:7.2f} s  {peak:6.0f} MB  {median / base:6.2f}"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", nargs="?", default="0.33.0")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    tree = fetch_release(options.release)
    files = sum(1 for _ in tree.rglob("*.py"))
    audit = [sys.executable, "-m", "mla_contract.cli.main", "audit", str(tree), "--format", "json"]
    cold, warm, mypy = [], [], []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as cache:
            env = {**os.environ, "MLA_CONTRACT_CACHE": cache}
            cold.append(measured(audit, env, Path.cwd()))
            warm.append(measured(audit, env, Path.cwd()))
            command = [sys.executable, "-m", "mypy", *MYPY_FLAGS, "--cache-dir", f"{cache}/mypy", *CHECKED]
            mypy.append(measured(command, env, tree))
    first, again = json.loads(cold[0].output), json.loads(warm[0].output)
    if first["findings"] != again["findings"] or not first["findings"]:
        raise SystemExit("the warm audit disagrees with the cold one, or found nothing")
    base = statistics.median(run.wall for run in cold)
    print(
        f"vLLM {options.release}, {files} files; Python {platform.python_version()}, {os.cpu_count()} CPUs, "
        f"mypy {version('mypy')}, {options.runs} runs"
    )
    print(f"{'case':28} {'median':>10}  {'min-max':>13}  {'CPU':>9}  {'peak':>9}  {'ratio':>6}")
    print(row("audit, whole tree, cold", cold, base))
    print(row("audit, whole tree, warm", warm, base))
    print(row("mypy, two files, cold", mypy, base))


if __name__ == "__main__":
    main()
