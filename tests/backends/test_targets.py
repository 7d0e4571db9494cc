"""Both backends as ``mla-contract check`` sees them: named by entry points, and judged on the whole corpus."""

from __future__ import annotations

import tomllib
from importlib import import_module
from typing import Any

import pytest

from mla_contract.testing.conformance import CHECKS, run_check
from mla_contract.testing.corpus import conformance_batches
from tests.contract.mypy_runs import ROOT

NAMED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["mla_contract.backends"]


def factory_of(name: str) -> Any:
    """Return the factory that an entry point of the project names."""
    module, _, attribute = NAMED[name].partition(":")
    return getattr(import_module(module), attribute)


def test_entry_points_name_both_backends() -> None:
    """The table has the ROCm and the CUDA backend."""
    assert {"rocm_sparse", "cuda_sparse"} <= set(NAMED)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", NAMED)
def test_target_holds_on_every_batch_of_the_corpus(name: str, check: str) -> None:
    """Every clause holds, the record is the plan's, no step leaves anything behind, and addresses stay."""
    for spec in conformance_batches().values():
        verdict = run_check(check, factory_of(name), spec)
        assert [one.render() for one in verdict.violations] == [], spec.name
