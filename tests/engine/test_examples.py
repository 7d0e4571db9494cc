"""The two third-party backends in ``examples/``: what happens without us, and what each check says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.runs import PACKAGES, lines_of, run_engine

pytestmark = pytest.mark.slow


def test_broken_backend_without_validator_dies_in_the_shared_layer(
    dense_model: Path, site: Callable[[str], Path]
) -> None:
    """The missing field shows as an AttributeError of the forward pass."""
    run = run_engine(dense_model, site=site("broken_backend"))
    assert run.outcome["error"] == "AttributeError"
    assert "'LeanMLAMetadata' object has no attribute 'num_decode_tokens'" in run.outcome["message"]


def test_broken_backend_in_error_mode_is_stopped_by_name(dense_model: Path, site: Callable[[str], Path]) -> None:
    """The first step ends before its forward pass, and the message names class, field, reader and line."""
    run = run_engine(dense_model, "error", "structural", site("broken_backend"))
    assert run.outcome["error"] == "ContractError"
    message = run.outcome["message"]
    assert "LeanMLAMetadata.num_decode_tokens: field is missing" in message
    reader = "read by MLAAttention.forward_impl, vllm/model_executor/layers/attention/mla_attention.py:969"
    assert f"{reader} of vLLM 0.32.0" in message


def test_broken_backend_is_found_by_the_audit(release_tree: Callable[[str], Path]) -> None:
    """The audit names class, field, reader and line from the sources alone."""
    command = [sys.executable, "-m", "mla_contract.cli.main", "audit", str(release_tree("0.32.0"))]
    command += ["--plugin", str(PACKAGES["broken_backend"]), "--select", "missing-field"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 1, done.stderr
    expected = "mla_attention.py:969: error: LeanMLAMetadata has no field num_decode_tokens"
    assert expected in done.stdout


def test_broken_backend_is_found_by_the_seam(tmp_path: Path) -> None:
    """The typed seam rejects the class under mypy, and accepts a class that declares the counts."""
    home = PACKAGES["broken_backend"].parent
    (tmp_path / "good.py").write_text(_GOOD, "utf-8")
    (tmp_path / "mypy.ini").write_text(_CONFIG, "utf-8")
    environment = os.environ | {"MYPYPATH": f"{home}:{tmp_path}"}
    found = []
    for name in ("broken_backend.metadata:LeanMLAMetadata", "good:Metadata"):
        seam = tmp_path / "seam.py"
        command = [sys.executable, "-m", "mla_contract.cli.main", "seam", name, "--output", str(seam)]
        subprocess.run(command, check=True, capture_output=True, timeout=100)
        checker = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "seam.py"]
        done = subprocess.run(
            checker, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        found.append(done.stdout)
    assert '"LeanMLAMetadata" has no attribute "num_decode_tokens"' in found[0]
    assert "Success" in found[1]


_CONFIG = """[mypy]
[mypy-vllm.*,torch.*]
follow_imports = skip
ignore_missing_imports = True
"""

_GOOD = '''"""The control."""

from dataclasses import dataclass


@dataclass
class Metadata:
    """Declares the counts."""

    num_reqs: int
    num_actual_tokens: int
    num_decodes: int
    num_prefills: int
    num_decode_tokens: int
'''


def test_stale_rows_without_validator_give_silently_other_tokens(
    dense_model: Path, site: Callable[[str], Path]
) -> None:
    """The run finishes without a word, and most requests get other tokens."""
    run = run_engine(dense_model, site=site("stale_rows_backend"))
    assert run.outcome["error"] == ""
    right = run_engine(dense_model).outcome["tokens"]
    assert sum(one != other for one, other in zip(run.outcome["tokens"], right, strict=True)) >= 2


def test_stale_rows_in_warn_mode_are_named(dense_model: Path, site: Callable[[str], Path]) -> None:
    """The values level names the field, the row's length and the stale one; the structural level cannot see it."""
    run = run_engine(dense_model, "warn", "values", site("stale_rows_backend"))
    assert run.outcome["error"] == ""
    (first,) = [line for line in lines_of(run, "MLA333 MLACommonMetadata.decode.seq_lens:") if "WARNING" in line]
    assert "not the row's cache length" in first
    assert lines_of(run, "mla-contract: violations in this process")


def test_stale_rows_in_error_mode_stop_the_step(dense_model: Path, site: Callable[[str], Path]) -> None:
    """In ``error`` no wrong token is made."""
    run = run_engine(dense_model, "error", "values", site("stale_rows_backend"))
    assert run.outcome["error"] == "ContractError"
    assert "MLACommonMetadata.decode.seq_lens" in run.outcome["message"]
