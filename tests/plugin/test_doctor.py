"""The doctor: what it says of this environment, of a foreign tree, and of a wrong word."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mla_contract.cli.main import app
from mla_contract.plugin.diagnosis import hooks_of

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
    assert "reference can run" in done.output


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
