"""One policy for releases: every reader of a version takes the same known one for it, and says so once."""

from __future__ import annotations

import logging

import pytest

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.plan import PlanConfig, plan_batch
from mla_contract.adapters.release import NEWEST, behaviour_of
from mla_contract.profiles import known_minors
from mla_contract.profiles.installed import nearest_profile
from mla_contract.profiles.release import NearestMinor, nearest_minor

KNOWN = ("0.24", "0.25", "0.32")
UNPLACED = ("1.2.3+fork", "unknown", "", "2026.1", "0.x", "0", "main", None, "0." + "9" * 5000)


@pytest.mark.parametrize(
    "release", ["0.32", "0.32.0", "v0.32.1rc1+cpu", "0.32.0.dev12", " 0.32.0 ", "0.32rc1", "0.32.1.dev3+g0123abc.d2026"]
)
def test_nearest_minor_of_known_release_is_its_own(release: str) -> None:
    """Every way of writing a version of a known minor release is exact."""
    assert nearest_minor(release, KNOWN) == NearestMinor("0.32", is_exact=True)


@pytest.mark.parametrize(
    ("release", "minor"),
    [("0.33.0", "0.32"), ("0.34", "0.32"), ("0.5", "0.24"), ("0.27.1", "0.25"), ("0.30", "0.32"), ("0.320", "0.32")],
)
def test_nearest_minor_of_unknown_release_is_the_closest(release: str, minor: str) -> None:
    """A release between or beyond the known ones gets the closest, which is not exact."""
    assert nearest_minor(release, KNOWN) == NearestMinor(minor, is_exact=False)


@pytest.mark.parametrize("release", [*UNPLACED, "0.1.dev7557+g977180c", "0.0.dev1"])
def test_nearest_minor_of_release_without_a_place_is_the_newest(release: str | None) -> None:
    """Other major versions, names, and builds without tags (vLLM issue 20664) get the newest."""
    assert nearest_minor(release, KNOWN) == NearestMinor("0.32", is_exact=False)


def test_nearest_minor_between_two_is_the_older() -> None:
    """Of two releases equally near, the older one is taken, in whatever order they are known."""
    assert nearest_minor("0.28.0", ("0.30", "0.26")).minor == "0.26"


def test_unknown_release_is_said_once_in_a_process(caplog: pytest.LogCaptureFixture) -> None:
    """Planner and profiles together log one line for a release that neither knows, and none for one that both do."""
    with caplog.at_level(logging.INFO, logger="mla_contract"):
        for release in ("0.77.3", "0.77.3", "0.32.0", "0.33"):
            behaviour_of(release)
            nearest_profile(release)
            PlanConfig(block_size=16, release=release)
    assert [record.getMessage() for record in caplog.records] == [
        f"vLLM 0.77.3 is not known to this version of mla-contract: taken as {NEWEST}"
    ]


@pytest.mark.parametrize("release", [*UNPLACED, "0.34.0", "0.34"])
def test_every_reader_of_a_release_takes_the_same_for_an_unknown_one(release: str | None) -> None:
    """Planner and profiles agree on the newest, and a plan with prefills is that of the newest."""
    assert nearest_profile(release).minor == known_minors()[-1] == NEWEST
    assert behaviour_of(release) == behaviour_of(NEWEST)
    shape = BatchShape.of([1, 4], [9, 20])
    wanted = plan_batch(shape, PlanConfig(block_size=16, workspace_rows=64)).context
    got = plan_batch(shape, PlanConfig(block_size=16, workspace_rows=64, release=release)).context
    assert wanted is not None
    assert type(got) is type(wanted)


def test_behaviour_of_old_and_new_releases_differ() -> None:
    """The agreement above is not vacuous: older lines plan differently, and what is older still is as the oldest."""
    assert behaviour_of("0.27.1") != behaviour_of(NEWEST)
    assert behaviour_of("0.5.4") == behaviour_of("0.19") != behaviour_of("0.26")
