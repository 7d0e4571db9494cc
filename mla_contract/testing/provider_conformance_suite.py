"""The certification of kernel providers as pytest items: one for each provider and case. The plugin collects it."""

from __future__ import annotations

import pytest

from mla_contract.contract.schema.provider import KernelProvider
from mla_contract.testing.providers import Judge, judges, provider_named


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one item for each provider and case."""
    names = metafunc.config.getoption("mla_provider")
    metafunc.parametrize("judge", [pytest.param(judge, id=name) for name, judge in judges()])
    metafunc.parametrize("provider", [pytest.param(provider_named(name), id=name) for name in names])


def test_provider(provider: KernelProvider, judge: Judge, request: pytest.FixtureRequest) -> None:
    """The provider equals the reference on this case, or refuses it with a reason."""
    verdicts = judge(provider, request.config.getoption("mla_device"))
    for verdict in verdicts:
        if verdict.error is not None:
            # As the provider raised it: pytest shows the way to the author's line.
            raise verdict.error
    faults = [fault for verdict in verdicts for fault in verdict.faults]
    if faults:
        pytest.fail("\n".join(fault.render() for fault in faults), pytrace=False)
    if all(verdict.refused for verdict in verdicts):
        pytest.skip(f"refused: {verdicts[0].refused}")
