"""Two packages of third parties, installed with pip beside this one in a fresh environment: both are found, and run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.mypy_runs import ROOT
from tests.examples.pages import PAGES, PROVIDER

pytestmark = pytest.mark.slow

PIP_OPTIONS = "--no-deps --no-build-isolation --disable-pip-version-check --quiet"
SOURCES = ("mla_contract", "pyproject.toml", "README.md", "LICENSE")


@dataclass(frozen=True)
class Environment:
    """An environment of its own, outside the checkout.

    Attributes:
        home: Its folder.
    """

    home: Path

    def run(self, command: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a shell's command line in it; pip gets what spares it a download of what is here already."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("MLA_CONTRACT", "PYTHON"))
        }
        path = f"{self.home / 'bin'}{os.pathsep}{os.environ['PATH']}"
        if command.startswith("pip install"):
            command += f" {PIP_OPTIONS}"
        return subprocess.run(
            ["bash", "-c", command],
            cwd=folder or self.home,
            env=inherited | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    def must(self, command: str, folder: Path | None = None) -> str:
        """Run, demand success, and return what was printed."""
        done = self.run(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with this package installed from a copy of its sources, and no third party's."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=True)
    made = Environment(home)
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    # What builds the packages is the one thing that pip must fetch, with what it needs.
    subprocess.run([home / "bin" / "python", "-m", "pip", "install", "--quiet", "hatchling>=1.27"], check=True)
    made.must(f"pip install {copy}")
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "what_is_here_already.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return made


@pytest.fixture(scope="module")
def control(before: Environment) -> tuple[str, str, str]:
    """Return what the doctor, the check and the page's comparison say before anything else is installed."""
    script = ROOT / PROVIDER.example / "compare.py"
    compared = before.run(f"MLA_CONTRACT_PROVIDER=toy python {script}")
    return before.must("mla-contract doctor"), before.run("mla-contract check toy_sparse").stderr, compared.stderr


@pytest.fixture(scope="module")
def after(
    before: Environment, control: tuple[str, str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Return what each command of both pages prints, typed in the folder of the package that the page makes."""
    printed = {}
    for page in PAGES:
        folder = page.write(tmp_path_factory.mktemp("package"))
        for command in page.commands:
            printed[command] = before.must(command, folder)
    printed["mla-contract check"] = before.must("mla-contract check")
    return printed


def _line(printed: str, name: str) -> str:
    """Return the words of the line of the registered that begins with a name; nothing where there is none."""
    return next((" ".join(line.split()) for line in printed.splitlines() if line.startswith(f"  {name} ")), "")


def test_nothing_of_a_third_party_is_known_before(control: tuple[str, str, str]) -> None:
    """The control: ours are registered by the installed package, no toy is, and naming one lists what there is."""
    doctor, check, compare = control
    assert _line(doctor, "rocm_sparse").startswith("rocm_sparse mla-contract 0.1.0: class for the engine")
    assert _line(doctor, "reference") == "reference mla-contract 0.1.0"
    assert "toy" not in doctor
    assert "nothing is registered under this name; known are cuda_sparse, rocm_sparse, sparse_indexer" in check
    assert "no provider has this name; known are aiter, triton, reference" in compare


def test_both_packages_are_listed_by_the_doctor(after: dict[str, str]) -> None:
    """Each stands with its distribution; the provider has its reason for each operation, and can map slots."""
    doctor = after["mla-contract doctor"]
    assert _line(doctor, "toy_sparse") == "toy_sparse toy-backend 0.1.0: target for check"
    assert _line(doctor, "toy") == "toy toy-provider 0.1.0"
    slots = doctor.partition("providers of MapSlots")[2].partition("providers of")[0]
    assert _line(slots, "toy") == "toy can run"
    attention = doctor.partition("providers of SparseAttention")[2].partition("providers of")[0]
    assert _line(attention, "toy") == "toy SparseAttention: the toy maps slots only"


def test_provider_runs_through_the_registry(after: dict[str, str]) -> None:
    """Named by the environment it runs the operation, equal to the reference."""
    assert after["MLA_CONTRACT_PROVIDER=toy python compare.py"] == "toy equals the reference\n"


@pytest.mark.parametrize("command", ["mla-contract check toy_sparse", "mla-contract check"])
def test_backend_is_checked_by_name_and_among_all(after: dict[str, str], command: str) -> None:
    """The suite has a column for it and decides clauses; nothing is violated."""
    heading, _, table = after[command].partition("\n")[2].partition("structure")
    assert "toy_sparse" in heading
    assert ("rocm_sparse" in heading) == (command == "mla-contract check")
    assert "!" not in table


def test_pages_tell_to_install_and_to_look() -> None:
    """The commands that were typed are the pages': each installs, and asks the doctor."""
    for page in PAGES:
        assert page.commands[:2] == ["pip install .", "mla-contract doctor"]
