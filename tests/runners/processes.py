"""Modules that run in a process of their own, as the interpreter must be chosen before vLLM is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runners.interpreter import missing

ROOT = Path(__file__).parents[2]


def run_module(module: str, *arguments: str, timeout_s: int = 300) -> subprocess.CompletedProcess[str]:
    """Run a module of this checkout; skip the test where vLLM's runners cannot be driven."""
    return run_python("-m", module, *arguments, timeout_s=timeout_s)


def run_python(*command: str, timeout_s: int = 300) -> subprocess.CompletedProcess[str]:
    """Run Python over this checkout; skip the test where vLLM's runners cannot be driven."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
