"""Fixtures that every part of the suite shares."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def release_tree() -> Callable[[str], Path]:
    """Return a function from a vLLM version to a directory with its sources.

    A release that cannot be fetched fails the test; ``MLA_CONTRACT_OFFLINE=1`` says that it is to be skipped instead.
    """
    from mla_contract.audit.source.acquire import fetch_release

    def tree(version: str) -> Path:
        if os.environ.get("MLA_CONTRACT_OFFLINE"):
            pytest.skip(f"offline: the sources of vLLM {version} are not fetched")
        return fetch_release(version)

    return tree
