"""The doctor: what it says of this environment, of a foreign tree, and of a wrong word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mla_contract.cli.main import app
from mla_contract.plugin.diagnosis import hooks_of
from tests.backends.installed import on_path, write_package

GROUP = "class AttentionGroup:\n    def build_metadata(self): ...\n"
BUILDER = "class AttentionMetadataBuilder:\n    def build(self): ...\n"


def test_doctor_of_this_environment_lists_versions_profile_and_providers() -> None:
    """Every provider has a verdict, and the exit code is 0."""
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    for word in (
        "vllm",
        "torch",
        "triton",
        "aiter",
        "profile",
        "plugin",
        "mode",
        "wraps",
        "providers of SparseAttention",
    ):
        assert word in done.output
    assert re.search(r"reference +can run", done.output)


def test_doctor_lists_what_is_registered_and_says_what_is_unusable(tmp_path: Path) -> None:
    """Ours and a foreign package's names stand with who registered them; one that cannot be loaded has its reason."""
    source = "from mla_contract.backends.registry import RegisteredBackend\nONE = RegisteredBackend(name='one')\n"
    entries = {"mla_contract.backends": {"one": ":ONE", "gone": ":GONE"}, "mla_contract.providers": {"away": ":AWAY"}}
    write_package(tmp_path, "their_package", source, entries)
    with on_path(tmp_path):
        lines = CliRunner().invoke(app, ["doctor"]).output.splitlines()
    found = {line.split()[0]: line for line in lines if line.startswith("  ") and "their_package 2.0" in line}
    assert found["one"].endswith("their_package 2.0: nothing")
    assert found["gone"].endswith("their_package 2.0: UNUSABLE: their_package has no GONE")
    assert found["away"].endswith("their_package 2.0: UNUSABLE: their_package has no AWAY")
    assert lines.count("  away            their_package has no AWAY") == 8
    again = CliRunner().invoke(app, ["doctor"]).output
    assert "their_package" not in again
    assert re.search(r"rocm_sparse +mla-contract .*: class for the engine, target for check", again)


def test_doctor_with_unknown_word_exits_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt mode is a fault, named with the known words."""
    monkeypatch.setenv("MLA_CONTRACT_VALIDATE", "wran")
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 2
    assert "FAULT" in done.output
    assert "known: warn, error" in done.output


def test_doctor_without_vllm_exits_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without vLLM there is nothing to wrap, and nothing wrong."""
    monkeypatch.setattr("mla_contract.plugin.diagnosis.installed_release", lambda: None)
    monkeypatch.setattr("mla_contract.plugin.diagnosis.package_path", lambda name: None)
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    assert "none: no vLLM" in done.output


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("v1/worker/utils.py", GROUP, ("AttentionGroup.build_metadata",)),
        ("v1/attention/backend.py", BUILDER, ("build of every builder class",)),
        ("v1/attention/backends/utils.py", BUILDER, ("build of every builder class",)),
        ("v1/attention/backend.py", "class (", ()),
    ],
)
def test_hooks_of_tree_are_read_from_source(tmp_path: Path, file: str, text: str, expected: tuple[str, ...]) -> None:
    """Both lines are told apart without importing the tree; source that cannot be parsed has none."""
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(text, "utf-8")
    assert hooks_of(tmp_path) == expected
