"""The public API is complete, and importing it is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mla_contract

HEAVY = ("torch", "vllm", "aiter", "triton", "pydantic", "numpy", "jaxtyping", "rich", "typer")


def run_python(code: str) -> str:
    """Run code in a fresh interpreter and return what it printed."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_fresh_interpreter_loads_nothing_heavy() -> None:
    """Importing the package loads no array library, no engine and none of the command line's packages."""
    loaded = run_python("import sys, mla_contract; print(*sorted(name.partition('.')[0] for name in sys.modules))")
    assert not set(HEAVY) & set(loaded.split())


def test_import_every_public_name_without_torch_works() -> None:
    """Every public name loads where torch, jaxtyping, NumPy and pydantic cannot be imported at all."""
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {HEAVY!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
try:
    import torch
except ImportError:
    print('torch is absent')
import mla_contract
print(len([getattr(mla_contract, name) for name in mla_contract.__all__]))
"""
    assert run_python(code).split("\n")[:2] == ["torch is absent", str(len(mla_contract.__all__))]


def test_all_is_sorted_complete_and_loadable() -> None:
    """`__all__`, the lazy table, the type-checking imports and `dir()` name the same things."""
    tree = ast.parse(Path(mla_contract.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed | {"__version__"} == set(mla_contract.__all__)
    assert set(mla_contract._HOME_OF) | {"__version__", "claims"} == set(mla_contract.__all__)
    assert dir(mla_contract) == sorted(mla_contract.__all__)
    assert len(set(mla_contract.__all__)) == len(mla_contract.__all__)


def test_getattr_public_name_is_the_defining_modules_object() -> None:
    """A lazily loaded name is the very object of its module, and is cached."""
    from mla_contract.errors import ContractError

    assert mla_contract.ContractError is ContractError
    assert vars(mla_contract)["ContractError"] is ContractError


def test_getattr_unknown_name_raises_attribute_error() -> None:
    """A misspelt name is an AttributeError that names module and attribute."""
    with pytest.raises(AttributeError, match="module 'mla_contract' has no attribute 'CountMetadata'"):
        _ = mla_contract.CountMetadata


def test_version_agrees_with_the_distribution() -> None:
    """The package and its metadata state the same version."""
    from importlib.metadata import version

    assert version("mla-contract") == mla_contract.__version__
