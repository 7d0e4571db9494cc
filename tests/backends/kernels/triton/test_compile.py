"""Kernels compile without a GPU, as the provider launches them, and fit the shared memory of the architecture."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

ROOT = Path(__file__).parents[4]
KERNELS = ROOT / "mla_contract" / "backends" / "kernels" / "triton"

KIB = 1024

LIMITS = {"sm90": 227 * KIB, "gfx942": 64 * KIB, "gfx950": 160 * KIB}
"""Shared memory of a program, from the vendors' manuals."""

HOPPER = {"attend_tiled", "pack_live"}
"""Kernels that only launches with ``tiled`` get."""

ROW = re.compile(r"^(\S+) +(\S.*?) {2,}(\w+) +(\d+) warps +(\d+) of (\d+) bytes$", re.M)

ALTERED = """
import sys
from mla_contract.backends.kernels.triton import launches
from scripts.compile_triton import main
rows = {{name: launches.Launch(**given) for name, given in {rows}.items()}}
launches.TABLE = {{**launches.TABLE, "gfx942": {{**launches.TABLE.get("gfx942", {{}}), **rows}}}}
sys.exit(main(["--arch", "gfx942", "--case", {case!r}]))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which kernels are compiled, with a cache of this module's own."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {**kept, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("compiled"))}


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the root."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


def entry_kernels() -> set[str]:
    """Return the jitted functions of the sources that no jitted function calls."""
    jitted, called = set(), set()
    for path in KERNELS.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and "triton.jit" in map(decorator, function.decorator_list):
                jitted.add(function.name)
                called |= {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    return jitted - called


def decorator(node: ast.expr) -> str:
    """Return a decorator's name without its arguments."""
    return ast.unparse(node).partition("(")[0]


@pytest.mark.slow
@pytest.mark.parametrize("arch", LIMITS)
def test_every_kernel_compiles_and_fits(environment: dict[str, str], arch: str) -> None:
    """Every kernel of the sources is launched by a case; only Hopper gets the one for groups of warps."""
    done = python(environment, "-m", "scripts.compile_triton", "--arch", arch)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert " 0 failures" in done.stdout and "does not" not in done.stdout
    rows = ROW.findall(done.stdout)
    assert {row[2] for row in rows} == entry_kernels() - (set() if arch == "sm90" else HOPPER)
    assert all(row[0] == arch and int(row[4]) <= int(row[5]) == LIMITS[arch] for row in rows)
    kernels: dict[str, set[str]] = {}
    for _, case, kernel, *_ in rows:
        kernels.setdefault(case, set()).add(kernel)
    for heads, slots in product((8, 16, 32, 64, 128), ("-1 among slots", "no -1")):
        few, many = (kernels[f"attention, {heads} heads, {text}, {slots}"] for text in ("few rows", "many rows"))
        assert few & {"attend", "attend_tiled"} == {"attend_tiled" if arch == "sm90" and heads > 16 else "attend"}
        assert few - many == {"merge"} and not many - few
    assert len([case for case in kernels if "fp8" in case]) > 20


@pytest.mark.parametrize(
    ("case", "rows", "code", "text"),
    [
        ("16 heads, many rows, no -1", {}, 0, r"attend         4 warps   \d{5} of 65536 bytes\n1 rows, 0 failures"),
        (
            "16 heads, many rows, no -1",
            {"attend_16": {"columns": 32, "warps": 8, "stages": 4}},
            1,
            r"attend         8 warps  1\d{5} of 65536 bytes: does not fit\n1 rows, 1 failures",
        ),
        (
            "gather, bfloat16",
            {"gather": {"rows": 24}},
            1,
            "pages of 1 +does not compile: CompilationError .*\n2 rows, 2 failures",
        ),
        ("no such case", {}, 1, "^0 rows, 0 failures"),
    ],
    ids=["table", "too-large", "no-power-of-two", "no-case"],
)
def test_launch_row_that_cannot_run_is_reported(
    environment: dict[str, str], case: str, rows: dict[str, dict[str, int]], code: int, text: str
) -> None:
    """A tile beyond the shared memory and one that is not a tile are named, and fail; the table's row does not."""
    done = python(environment, "-c", ALTERED.format(rows=rows, case=case))
    assert done.returncode == code, done.stderr[-2000:]
    assert re.search(text, done.stdout, re.S)
