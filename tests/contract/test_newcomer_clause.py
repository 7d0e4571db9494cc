"""The page "add a clause", followed to the letter in a copy of the repository: its blocks written, its commands run."""

from __future__ import annotations

import pytest

from tests import newcomer
from tests.newcomer import ROOT, Copy, blocks, steps_of

PAGE = ROOT / "docs" / "add-a-clause.md"
COPIED = (
    *("mla_contract", "tests/__init__.py", "tests/conftest.py", "tests/contract", "tests/lab"),
    *("scripts", "docs/clauses", "docs/faults.md", "pyproject.toml"),
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """Return a copy of the repository in which all blocks of the page have been written."""
    return newcomer.followed(tmp_path_factory.mktemp("followed"), COPIED, PAGE)


def test_page_has_numbered_steps_and_every_kind_of_block() -> None:
    """The steps are numbered without a gap, and the page has a file, changes and commands."""
    assert steps_of(PAGE) == list(range(1, 7))
    assert [len(blocks(PAGE, kind)) for kind in ("python", "diff", "console")] == [1, 2, 2]


def test_page_commands_succeed_after_its_steps(followed: Copy) -> None:
    """Pages are generated, the clause is explained, and the tests that the page names pass, with the new clause."""
    for line in [line for block in blocks(PAGE, "console") for line in block.splitlines()]:
        done = followed.run(line.removeprefix("$ "))
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert "at least one key" in (followed.root / "docs" / "clauses" / "MLA258.md").read_text()
    done = followed.run("pytest tests/contract/clauses/test_clauses.py -q -k MLA258")
    assert (done.returncode, "6 passed" in done.stdout) == (0, True), done.stdout


def test_page_tests_fail_where_the_check_is_blind(followed: Copy) -> None:
    """A check that always says fine is found by the tests of step 6: the control."""
    path = followed.root / "mla_contract" / "contract" / "clauses" / "selection.py"
    text = path.read_text()
    path.write_text(text.replace("topk_tokens > 0", "topk_tokens >= 0"))
    done = followed.run("pytest tests/contract/clauses/test_clauses.py -q -k MLA258")
    path.write_text(text)
    assert done.returncode == 1 and "test_clause_on_bad_subject_reports_its_id" in done.stdout


def test_clause_is_unknown_where_the_page_is_not_followed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without the steps there is no such clause."""
    plain = newcomer.copy_of(tmp_path_factory.mktemp("plain"), ("mla_contract",))
    assert plain.run("mla-contract explain MLA258").returncode != 0
