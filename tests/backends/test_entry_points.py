"""What other packages register: taken by name, and never able to break what it stands beside."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import mla_contract
from mla_contract.backends import entry_points
from mla_contract.backends.entry_points import Registration, load_registered, registrations
from mla_contract.backends.kernels import registry
from mla_contract.backends.registry import RegisteredBackend, find_backend, known_backends
from mla_contract.contract.schema.provider import MapSlots
from mla_contract.errors import NoProvider
from tests.backends.installed import on_path, write_package

PROVIDER = """
class Provider:
    name = "theirs"
    def reason(self, inputs): return None
    def run(self, inputs): inputs.out.fill_(7)

class Nameless(Provider):
    name = "other"

class Raising(Provider):
    def __init__(self): raise OSError("no such device")

class Mute:
    name = "mute"
"""
BACKEND = """
from mla_contract.backends.registry import RegisteredBackend
BACKEND = RegisteredBackend(name="theirs", target="their_package:make")
OTHER = RegisteredBackend(name="other")
def make(): ...
"""


def slots() -> MapSlots:
    """Return a small operation."""
    row = torch.zeros(1, 4, dtype=torch.int32)
    return MapSlots(positions=row, req_id_per_token=row[0, :1], block_table=row, block_size=4, out=row.clone())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for packages, with no provider named."""
    monkeypatch.delenv(registry.ENVIRONMENT, raising=False)
    return tmp_path


def test_foreign_provider_comes_before_the_reference_and_runs(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands between measured kernels and the reference, runs by default and by name, and is gone when removed."""
    write_package(site, "their_package", PROVIDER, {registry.GROUP: {"theirs": ":Provider"}})
    with on_path(site):
        assert registry.known_providers() == ("aiter", "triton", "theirs", "reference")
        assert registry.select_provider(slots()).name == "theirs"
        monkeypatch.setenv(registry.ENVIRONMENT, "theirs")
        inputs = slots()
        registry.run(inputs)
        assert inputs.out.tolist() == [[7] * 4]
    assert registry.known_providers() == ("aiter", "triton", "reference")
    with pytest.raises(NoProvider, match="no provider has this name; known are aiter, triton, reference"):
        registry.select_provider(slots())


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("theirs", ":Absent", "their_package has no Absent"),
        ("theirs", ":Nameless", "it is registered as theirs, and calls itself other"),
        ("theirs", ":Raising", "its factory raises OSError: no such device"),
        ("mute", ":Mute", "its factory returns Mute, which lacks reason or run"),
        ("theirs", "_gone:Provider", "their_package_gone cannot be imported: ModuleNotFoundError"),
    ],
)
def test_unusable_provider_is_a_reason_and_others_still_run(site: Path, name: str, value: str, reason: str) -> None:
    """Whatever is wrong with a foreign provider stands in its reason, and the reference runs as before."""
    write_package(site, "their_package", PROVIDER, {registry.GROUP: {name: value}})
    with on_path(site):
        assert reason in str(registry.reasons(slots())[name])
        assert registry.select_provider(slots()).name == "reference"


def test_module_that_raises_on_import_is_a_reason(site: Path) -> None:
    """A module may raise anything, not only an ImportError."""
    write_package(site, "their_package", "1 / 0", {registry.GROUP: {"theirs": ":Provider"}})
    with on_path(site):
        reason = str(registry.load_provider("theirs"))
    assert reason == "their_package cannot be imported: ZeroDivisionError: division by zero"


def test_name_that_two_packages_register_names_both(site: Path) -> None:
    """Neither is taken, whichever pip installed first; one of them alone is."""
    for package in ("one", "two"):
        write_package(site, package, PROVIDER, {registry.GROUP: {"theirs": ":Provider"}})
    with on_path(site):
        reason = str(registry.load_provider("theirs"))
    assert "the name is taken twice: by one 2.0 (one:Provider) and two 2.0 (two:Provider)" in reason
    alone = site / "alone"
    alone.mkdir()
    write_package(alone, "one", PROVIDER, {registry.GROUP: {"theirs": ":Provider"}})
    with on_path(alone):
        assert not isinstance(registry.load_provider("theirs"), str)


def test_foreign_package_that_takes_our_name_disables_it_with_a_reason(site: Path) -> None:
    """Nobody becomes ``reference`` unnoticed."""
    write_package(site, "their_package", PROVIDER, {registry.GROUP: {"reference": ":Provider"}})
    with (
        on_path(site),
        pytest.raises(NoProvider, match="the name is taken twice: by mla-contract .* and their_package"),
    ):
        registry.select_provider(slots())


def test_foreign_backend_is_found_by_name(site: Path) -> None:
    """A registered object is had as it is; other names, other types and unknown names are reasons."""
    entries = {"theirs": ":BACKEND", "renamed": ":OTHER", "factory": ":make"}
    write_package(site, "their_package", BACKEND, {"mla_contract.backends": entries})
    with on_path(site):
        assert find_backend("theirs") == RegisteredBackend(name="theirs", target="their_package:make")
        assert find_backend("renamed") == "it is registered as renamed, and calls itself other"
        assert find_backend("factory") == "its entry point leads to function, not to a RegisteredBackend"
        assert list(known_backends())[-3:] == ["factory", "renamed", "theirs"]
    assert "known are cuda_sparse, rocm_sparse, sparse_indexer" in str(find_backend("theirs"))


def test_source_tree_answers_for_its_own_entries() -> None:
    """Whatever an installation of this package says, the tree's own table holds, and says so."""
    (found,) = registrations(registry.GROUP)["triton"]
    assert found.value == "mla_contract.backends.kernels.triton:TritonProvider"
    assert found.distribution == f"mla-contract {mla_contract.__version__} (source tree)"


def test_installed_package_answers_by_its_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside another project's pyproject.toml, or none, the installed metadata count; without any, nothing is known."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "careless"\n', "utf-8")
    monkeypatch.setattr(mla_contract, "__file__", str(tmp_path / "mla_contract" / "__init__.py"))
    monkeypatch.setattr(entry_points, "entry_points", lambda group: ())
    registrations.cache_clear()
    try:
        assert registrations(registry.GROUP) == {}
        assert load_registered(registry.GROUP, "aiter") == "nothing is registered under this name; known are none"
    finally:
        registrations.cache_clear()


def test_registration_of_this_package_is_known_by_any_spelling() -> None:
    """Metadata may write a distribution's name with an underscore."""

    class Dist:
        name, version = "mla_contract", "9"

    class Entry:
        name, value, dist = "aiter", "a:b", Dist()

    assert entry_points._registration(Entry()) == Registration("aiter", "a:b", "mla_contract 9", is_own=True)  # type: ignore[arg-type]
