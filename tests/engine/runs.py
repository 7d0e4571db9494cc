"""Runs of the real engine, each in a process of its own; equal runs are made once."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from mla_contract.testing.engine import processes
from mla_contract.testing.engine.processes import EngineRun
from mla_contract.testing.engine.smoke import DOUBLE_STANDS_FOR, Smoke

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "broken_backend": ROOT / "examples/broken_backend/broken_backend",
    "stale_rows_backend": ROOT / "examples/stale_rows_backend/stale_rows_backend",
    "planted_fault": ROOT / "tests/engine/plugins/planted_fault",
    "in_tree_sparse": ROOT / "tests/engine/plugins/in_tree_sparse",
}
"""Third-party packages, each with a general plugin ``register``."""
PLUGINS = ROOT / "tests/engine/plugins"
"""Where third-party packages without a plugin lie: they are named as ``module:Class``."""

PLAIN = Smoke()
FP8 = Smoke(index_cache="fp8")
DOUBLED = Smoke(provider="aiter-double")
GLM = Smoke(model="glm-moe-dsa")


def site_of(name: str, folder: Path) -> Path:
    """Return a folder in which a package is installed: the package, and the metadata that pip would write."""
    package, info = PACKAGES[name], folder / f"{name}-0.1.0.dist-info"
    if not info.exists():
        (folder / name).symlink_to(package, target_is_directory=True)
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n", "utf-8")
        (info / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {name}:register\n", "utf-8")
    return folder


@cache
def run_engine(
    model: Path,
    mode: str = "",
    level: str = "",
    site: Path | None = None,
    options: str = "{}",
    plugins: str | None = None,
) -> EngineRun:
    """Run the traffic through the engine.

    Args:
        model: Folder of the model.
        mode: What ``MLA_CONTRACT_VALIDATE`` holds; unset when empty.
        level: What ``MLA_CONTRACT_LEVEL`` holds; unset when empty.
        site: Folder with third-party packages.
        options: Options of the traffic, as JSON.
        plugins: What ``VLLM_PLUGINS`` holds; unset when None.
    """
    asked = {
        "MLA_CONTRACT_VALIDATE": mode or None,
        "MLA_CONTRACT_LEVEL": level or None,
        "VLLM_PLUGINS": plugins,
        "PYTHONPATH": None if site is None else str(site),
    }
    variables = {name: value for name, value in asked.items() if value is not None}
    return processes.run_engine(model, json.loads(options), variables)


@cache
def run_backend(model: Path, smoke: Smoke, options: str = "{}") -> EngineRun:
    """Run a smoke run's traffic through a sparse backend, every build validated.

    Args:
        model: Folder of the model.
        smoke: Backend, provider and format of the keys.
        options: Fields of the traffic that differ, as JSON.
    """
    double = DOUBLE_STANDS_FOR if smoke.doubled else ""
    variables = {**smoke.variables, "PYTHONPATH": str(PLUGINS)}
    return processes.run_engine(model, smoke.traffic | json.loads(options), variables, double)


def lines_of(run: EngineRun, text: str) -> list[str]:
    """Return the log lines of a run that contain a text."""
    return [line for line in run.log.splitlines() if text in line]
