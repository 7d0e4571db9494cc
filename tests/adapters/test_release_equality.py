"""The switch for older release lines against the functions in their sources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mla_contract.adapters.release import behaviour_of
from tests.adapters.comparison import compare
from tests.adapters.draws import draw
from tests.adapters.peers import extracted_peer

COUNT = 300


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.25.0", "0.26.0", "0.27.1", "0.28.0", "0.30.0", "0.31.0", "0.33.0"])
def test_planners_with_the_switch_of_a_release_equal_its_functions(
    release_tree: Callable[[str], Path], version: str
) -> None:
    """On random batches, split, local lengths, context and indexer chunks are those of the release."""
    minor = ".".join(version.split(".")[:2])
    peer = extracted_peer(release_tree(version), minor)
    rng = np.random.default_rng(26)
    found = [line for _ in range(COUNT) for line in compare(draw(rng, minor), peer).differences]
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize(("version", "wrong"), [("0.25.0", "0.26"), ("0.30.0", "0.31")])
def test_split_with_the_switch_of_another_line_differs_from_its_function(
    release_tree: Callable[[str], Path], version: str, wrong: str
) -> None:
    """The comparison is not vacuous: with the next line's switch, differences are found."""
    minor = ".".join(version.split(".")[:2])
    assert behaviour_of(minor) != behaviour_of(wrong)
    peer = extracted_peer(release_tree(version), minor)
    rng = np.random.default_rng(26)
    draws = [draw(rng, minor) for _ in range(COUNT)]
    switched = [one._replace(split=replace(one.split, release=wrong)) for one in draws]
    assert [line for one in switched for line in compare(one, peer).differences if line.startswith("split")]
