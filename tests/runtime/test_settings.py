"""Modes and levels: words, environment, nesting, and off means off."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from mla_contract import SparseMLAMetadata, narrow
from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.schema import narrow as narrow_module
from mla_contract.errors import ContractError, InvalidContract
from mla_contract.runtime import Mode, Settings, current_settings, validated, validating
from tests.contract.clauses.cases import subject


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables."""
    monkeypatch.delenv("MLA_CONTRACT_VALIDATE", raising=False)
    monkeypatch.delenv("MLA_CONTRACT_LEVEL", raising=False)


def test_current_settings_by_default_are_off() -> None:
    """Nothing set means off, structural."""
    assert current_settings() == Settings(Mode.OFF, Level.STRUCTURAL)


@pytest.mark.parametrize(
    ("variable", "known"), [("MLA_CONTRACT_VALIDATE", "warn, error"), ("MLA_CONTRACT_LEVEL", "structural, values")]
)
def test_current_settings_of_unknown_word_list_the_known(
    monkeypatch: pytest.MonkeyPatch, variable: str, known: str
) -> None:
    """A typing error in a variable is an error that lists what is accepted."""
    monkeypatch.setenv("MLA_CONTRACT_VALIDATE", "warn")
    monkeypatch.setenv(variable, "erorr")
    with pytest.raises(InvalidContract, match=known):
        current_settings()


def test_current_settings_of_unknown_level_without_mode_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is checked, a misspelt level must not stop what does not ask for checks."""
    monkeypatch.setenv("MLA_CONTRACT_LEVEL", "valeus")
    assert current_settings() == Settings()


def test_current_settings_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both variables are read."""
    monkeypatch.setenv("MLA_CONTRACT_VALIDATE", "warn")
    monkeypatch.setenv("MLA_CONTRACT_LEVEL", "values")
    assert current_settings() == Settings(Mode.WARN, Level.VALUES)


def test_validating_nests_and_restores() -> None:
    """The innermost block counts; leaving it, also by an error, restores the outer one."""
    with validating("warn"):
        with validating("error", "values"):
            assert current_settings() == Settings(Mode.ERROR, Level.VALUES)
        with pytest.raises(KeyError), validating(""):
            assert current_settings().mode is Mode.OFF
            raise KeyError
        assert current_settings().mode is Mode.WARN
    assert current_settings().mode is Mode.OFF and narrow_module.validator is None


def test_validating_unknown_word_is_an_error() -> None:
    """A context with an unknown word does not open."""
    with pytest.raises(InvalidContract), validating("loud"):
        pass


def test_validated_while_off_returns_the_function_itself() -> None:
    """With the mode unset the decorator is the identity."""

    def build() -> object:
        return None

    assert validated(SparseMLAMetadata)(build) is build
    with validating("error"):
        assert validated(SparseMLAMetadata)(build) is not build


def test_narrow_while_armed_checks_and_returns_the_object() -> None:
    """``narrow`` raises on a breach inside ``validating``, and is a cast outside."""
    metadata: Any = subject().metadata
    with validating("error"):
        assert narrow(metadata, SparseMLAMetadata) is metadata
        setattr(metadata, "num_decodes", None)  # noqa: B010 - narrowing has made it read-only for the type checker
        with pytest.raises(ContractError) as caught:
            narrow(metadata, SparseMLAMetadata)
    assert [found.path for found in caught.value.violations] == ["PlainSparse.num_decodes"]
    assert narrow(metadata, SparseMLAMetadata) is metadata


def test_environment_arms_narrow_on_import() -> None:
    """Importing the package with the variable set arms the hook; without it nothing is armed."""
    program = (
        "import mla_contract.runtime\n"
        "from mla_contract.contract.schema import narrow\n"
        "print(narrow.validator is not None)"
    )
    for mode, armed in (("warn", "True"), ("", "False")):
        environment = {"MLA_CONTRACT_VALIDATE": mode, "PATH": "", "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == armed


def test_import_of_runtime_loads_no_array_library() -> None:
    """The runtime layer imports torch with the object that needs it."""
    program = "import sys, mla_contract.runtime; print('torch' in sys.modules)"
    environment = {"PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
