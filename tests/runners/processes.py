"""Modules that run in a process of their own, as the interpreter must be chosen before vLLM is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runners.interpreter import missing

ROOT = Path(__file__).parents[2]


def run_module(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of this checkout; skip the test where vLLM's runners cannot be driven."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
