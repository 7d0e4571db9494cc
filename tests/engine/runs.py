"""Runs of the real engine, each in a process of its own and bounded in time; equal runs are made once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_S = 400
PACKAGES = {
    "broken_backend": ROOT / "examples/broken_backend/broken_backend",
    "stale_rows_backend": ROOT / "examples/stale_rows_backend/stale_rows_backend",
    "planted_fault": ROOT / "tests/engine/plugins/planted_fault",
    "in_tree_sparse": ROOT / "tests/engine/plugins/in_tree_sparse",
}
"""Third-party packages, each with a general plugin ``register``."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run left.

    Attributes:
        outcome: The JSON that the traffic prints.
        log: Everything on standard error.
    """

    outcome: dict[str, Any]
    log: str

    def lines_of(self, text: str) -> list[str]:
        """Return the log lines that contain a text."""
        return [line for line in self.log.splitlines() if text in line]


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
    tier: str = "",
    site: Path | None = None,
    options: str = "{}",
    plugins: str | None = None,
) -> Run:
    """Run the traffic through the engine.

    Args:
        model: Folder of the model.
        mode: What ``MLA_CONTRACT_VALIDATE`` holds; unset when empty.
        tier: What ``MLA_CONTRACT_TIER`` holds; unset when empty.
        site: Folder with third-party packages.
        options: Options of the traffic, as JSON.
        plugins: What ``VLLM_PLUGINS`` holds; unset when None.
    """
    dropped = ("MLA_CONTRACT_VALIDATE", "MLA_CONTRACT_TIER", "VLLM_PLUGINS", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    asked = {
        "MLA_CONTRACT_VALIDATE": mode or None,
        "MLA_CONTRACT_TIER": tier or None,
        "VLLM_PLUGINS": plugins,
        "PYTHONPATH": None if site is None else str(site),
    }
    environment |= {name: value for name, value in asked.items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-m", "mla_contract.adapters.vllm.traffic", str(model), options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    found = re.search(r"^OUTCOME (.*)$", done.stdout, re.MULTILINE)
    assert found, f"the run left no outcome (exit {done.returncode}):\n{done.stderr[-3000:]}"
    return Run(json.loads(found.group(1)), done.stderr)
