"""The conformance suite as pytest items: one for each target, check and batch. Collected by the plugin only."""

from __future__ import annotations

import pytest

from mla_contract.testing.conformance import CHECKS, run_check
from mla_contract.testing.corpus import BatchSpec, conformance_batches
from mla_contract.testing.target import Factory
from mla_contract.testing.targets import load_targets


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item for each target, check and batch."""
    names = metafunc.config.getoption("mla_backend")
    specs = conformance_batches().values()
    metafunc.parametrize("spec", [pytest.param(spec, id=spec.name) for spec in specs])
    metafunc.parametrize("check", list(CHECKS))
    targets = [target for name in names for target in load_targets(name)]
    metafunc.parametrize("factory", [pytest.param(target.factory, id=target.label) for target in targets])


def test_conformance(factory: Factory, check: str, spec: BatchSpec) -> None:
    """The builder passes this check on this batch."""
    verdict = run_check(check, factory, spec)
    if verdict.skipped is not None:
        pytest.skip(verdict.skipped)
    if verdict.error is not None:
        # As the builder raised it: pytest shows the way to the author's line.
        raise verdict.error
    if verdict.violations:
        pytest.fail("\n".join(violation.render() for violation in verdict.violations), pytrace=False)
