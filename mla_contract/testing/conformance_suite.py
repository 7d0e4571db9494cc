"""The conformance suite as pytest items: one for each target, check and batch. Collected by the plugin only."""

from __future__ import annotations

import pytest

from mla_contract.testing.conformance import CHECKS, Factory, run_check
from mla_contract.testing.corpus import BatchSpec, conformance_batches
from mla_contract.testing.targets import load_factory


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item for each target, check and batch."""
    names = metafunc.config.getoption("mla_backend")
    specs = conformance_batches().values()
    metafunc.parametrize("spec", [pytest.param(spec, id=spec.name) for spec in specs])
    metafunc.parametrize("check", list(CHECKS))
    metafunc.parametrize("factory", [pytest.param(load_factory(name), id=name) for name in names])


def test_conformance(factory: Factory, check: str, spec: BatchSpec) -> None:
    """The builder passes this check on this batch."""
    verdict = run_check(check, factory, spec)
    if verdict.skipped is not None:
        pytest.skip(verdict.skipped)
    if verdict.violations:
        pytest.fail("\n".join(violation.render() for violation in verdict.violations), pytrace=False)
