"""The pytest plugin: ``--mla-backend`` and ``--mla-provider`` run the suites for builders and kernels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SUITES = {
    "mla_backend": Path(__file__).with_name("conformance_suite.py"),
    "mla_provider": Path(__file__).with_name("provider_conformance_suite.py"),
}
"""The suite that each option collects."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("mla-contract")
    group.addoption(
        "--mla-backend",
        action="append",
        default=[],
        metavar="MODULE:FACTORY",
        help="Run the conformance suite of mla-contract on the builder that the factory returns; repeatable.",
    )
    group.addoption(
        "--mla-provider",
        action="append",
        default=[],
        metavar="MODULE:FACTORY",
        help="Certify the kernel provider that the factory returns against the reference; repeatable.",
    )
    group.addoption(
        "--mla-device", default="cpu", metavar="DEVICE", help="Where the kernels of --mla-provider run; cpu by default."
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the suites: alone where no path was given, else besides the paths."""
    suites = [str(path) for option, path in SUITES.items() if config.getoption(option)]
    if not suites:
        return
    sys.path.insert(0, str(config.invocation_params.dir))
    given = config.args if config.args_source is type(config.args_source).ARGS else []
    config.args = [*given, *suites]
