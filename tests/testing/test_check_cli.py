"""The command ``check`` prints what holds, what is violated and what was skipped; ``explain`` knows clauses."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from mla_contract.cli.main import app
from mla_contract.testing import scoreboard
from mla_contract.testing.corpus import conformance_batches

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def _few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check three batches: the command is the same for all."""
    names = ("mixed_small", "ubatch_cudagraph_padding_padded", "kimi_k3_prefill_context")
    chosen = {name: conformance_batches()[name] for name in names}
    monkeypatch.setattr(scoreboard, "conformance_batches", lambda: chosen)


def test_check_without_targets_shows_the_references() -> None:
    """Where nothing is registered the reference builders are checked, and nothing is violated."""
    done = RUNNER.invoke(app, ["check", "--reference"])
    assert done.exit_code == 0, done.output
    assert "reference indexer" in done.output and "context_values" in done.output
    assert "!" not in done.output.partition("structure")[2]


def test_check_of_bad_target_prints_the_violation() -> None:
    """A violated clause stands in the table and below it, with its batch; the exit code is 1."""
    done = RUNNER.invoke(app, ["check", "tests.testing.bad_targets:StaleTail"])
    assert done.exit_code == 1
    assert "! MLA333" in done.output
    assert "batch ubatch_cudagraph_padding_padded" in done.output
    assert "expected" in done.output and "mla-contract explain MLA333" in done.output


def test_check_shows_the_traceback_of_a_builder_that_raises() -> None:
    """The violation stands beside the way to the author's line; none of this package's lines are on it."""
    done = RUNNER.invoke(app, ["check", "tests.testing.bad_targets:Raising"])
    assert done.exit_code == 1
    assert "the builder raises" in done.output and "# the author's line" in done.output
    assert "in _refuse" in done.output and "conformance.py" not in done.output.partition("Traceback")[2]
    assert done.output.count("Traceback") == 1


def test_check_of_wrong_target_says_what_is_wrong_with_it() -> None:
    """A target's mistake exits with 2, with what was expected and found."""
    done = RUNNER.invoke(app, ["check", "tests.testing.bad_targets:NoExpectations"])
    assert done.exit_code == 2
    assert "NoExpectations.expectations" in done.output and "expected" in done.output and "MLA111" not in done.output


@pytest.mark.parametrize(("name", "line"), [("not_made", "factory"), ("RaisingProperty", "property")])
def test_check_shows_the_traceback_of_a_target_that_raises(name: str, line: str) -> None:
    """What a factory or a property raises reaches its author."""
    done = RUNNER.invoke(app, ["check", f"tests.testing.bad_targets:{name}"])
    assert done.exit_code == 2
    assert f"# the author's {line}" in done.output


def test_check_of_good_target_exits_with_0() -> None:
    """A target that is named is checked alone, and the providers of this machine stand below with their reasons."""
    done = RUNNER.invoke(app, ["check", "tests.testing.bad_targets:good"])
    assert done.exit_code == 0, done.output
    table, _, providers = done.output.partition("providers of ")
    assert "reference" not in table
    assert "aiter" in providers and "can run" in providers


def test_check_with_verbose_says_why_clauses_were_skipped() -> None:
    """Every skipped clause has its reason."""
    done = RUNNER.invoke(app, ["check", "tests.testing.bad_targets:good", "--verbose"])
    assert re.search(r"MLA401 undecided, decided on 0 of \d+  \d+ lack trace.workspace", done.output)
    assert re.search(r"MLA201 held, decided on (\d+) of \1\n", done.output)


def test_check_of_unknown_target_exits_with_2() -> None:
    """A name that cannot be imported is an error with help."""
    done = RUNNER.invoke(app, ["check", "not_there:factory"])
    assert done.exit_code == 2
    assert "not_there cannot be imported" in done.output


@pytest.mark.parametrize("code", ["MLA203", "mla107"])
def test_explain_of_clause_prints_its_page(code: str) -> None:
    """Clauses and structural faults are explained beside rules."""
    done = RUNNER.invoke(app, ["explain", code])
    assert done.exit_code == 0
    assert code.upper() in done.output and "Smallest example" in done.output


def test_explain_of_unknown_clause_exits_with_2() -> None:
    """A code that neither rules nor clauses have is an error; one of a rule is still explained."""
    assert RUNNER.invoke(app, ["explain", "MLA999"]).exit_code == 2
    assert RUNNER.invoke(app, ["explain", "REQ001"]).exit_code == 0
