"""The pytest plugin: ``pytest --mla-backend module:factory`` runs the conformance suite; light when unused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SUITE = Path(__file__).with_name("conformance_suite.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("mla-contract").addoption(
        "--mla-backend",
        action="append",
        default=[],
        metavar="MODULE:FACTORY",
        help="Run the conformance suite of mla-contract on the builder that the factory returns; repeatable.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the suite: alone where no path was given, else besides the paths."""
    if not config.getoption("mla_backend"):
        return
    sys.path.insert(0, str(config.invocation_params.dir))
    given = config.args if config.args_source is type(config.args_source).ARGS else []
    config.args = [*given, str(SUITE)]
