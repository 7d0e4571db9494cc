"""The entry points: nothing happens unasked, and an unknown word is an error that lists the known ones."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mla_contract.backends import choice
from mla_contract.errors import InvalidContract
from mla_contract.plugin.entry import platform, register

LOADED = """
import sys
from mla_contract.plugin.entry import platform, register
register()
print(platform(), sorted({"torch", "vllm", "numpy"} & {name.partition(".")[0] for name in sys.modules}))
"""


def test_entry_points_unasked_do_nothing_and_import_nothing() -> None:
    """With the variables unset there is no platform, and neither torch nor vLLM is loaded."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLA_CONTRACT_")}
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.strip() == "None []"


def test_unknown_backend_is_an_error_that_lists_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt backend must not run another one; a known one and a class are accepted."""
    monkeypatch.setenv(choice.BACKEND_VARIABLE, "rocm_sprase")
    with pytest.raises(InvalidContract, match="the engine can have cuda_sparse, rocm_sparse, module:Class"):
        register()
    with pytest.raises(InvalidContract, match="no class for the engine"):
        choice.backend_path("sparse_indexer")
    assert choice.backend_path("rocm_sparse") == "mla_contract.backends.vllm.backend.RocmSparse"
    assert choice.backend_path("fork.attention:Backend") == "fork.attention.Backend"


def test_unknown_index_cache_is_an_error_that_lists_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt format is an error too; unset means vLLM's own."""
    monkeypatch.delenv(choice.INDEX_CACHE_VARIABLE, raising=False)
    assert choice.index_cache() == "fp8"
    monkeypatch.setenv(choice.INDEX_CACHE_VARIABLE, "fp4")
    with pytest.raises(InvalidContract, match="known are fp8, float"):
        choice.index_cache()


def test_platform_without_a_backend_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform plugin is silent unless asked."""
    monkeypatch.delenv(choice.BACKEND_VARIABLE, raising=False)
    assert platform() is None
