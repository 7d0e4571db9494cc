"""The page "add a rule", followed to the letter in a copy of the repository: its blocks written, its commands run."""

from __future__ import annotations

import json
import shutil

import pytest

from tests import newcomer
from tests.newcomer import ROOT, Copy, blocks, steps_of

PAGE = ROOT / "docs" / "add-a-rule.md"
BASE = "tests/audit/fixtures/drift/base"
CASE = "tests/audit/fixtures/typing/untyped_field"
COPIED = ("mla_contract", "tests/__init__.py", "tests/conftest.py", "tests/audit", "docs/rules", "pyproject.toml")


def audit(made: Copy, case: str) -> tuple[int, list[tuple[str, int]]]:
    """Return the exit code and the findings of the new rule on a tree of the page, laid over the base."""
    tree = made.root / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    for part in (BASE, case):
        shutil.copytree(made.root / part, tree, dirs_exist_ok=True)
    (tree / "vllm" / "__init__.py").touch()
    done = made.run(f"mla-contract audit {tree} --select TYP004 --format json --no-cache")
    return done.returncode, [(f["path"], f["line"]) for f in json.loads(done.stdout)["findings"]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """Return a copy of the repository that nothing is changed in."""
    return newcomer.copy_of(tmp_path_factory.mktemp("plain"), COPIED)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """Return a copy of the repository in which all blocks of the page have been written."""
    return newcomer.followed(tmp_path_factory.mktemp("followed"), COPIED, PAGE)


def test_page_has_numbered_steps_and_every_kind_of_block() -> None:
    """The steps are numbered without a gap, and the page has files, changes and commands."""
    numbers = steps_of(PAGE)
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= 6
    assert [len(blocks(PAGE, kind)) for kind in ("python", "diff", "console")] == [3, 4, 1]


def test_page_commands_succeed_after_its_steps(followed: Copy) -> None:
    """The page is generated, explained, and the tests that the page names pass, those of the new rule among them."""
    for line in blocks(PAGE, "console")[0].splitlines():
        done = followed.run(line.removeprefix("$ "))
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert "untyped-field" in (followed.root / "docs" / "rules" / "TYP004.md").read_text()
    done = followed.run("pytest tests/audit/rules/test_typing.py -q -k untyped_field")
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout


def test_rule_reports_the_bad_tree_and_not_its_twin(followed: Copy) -> None:
    """The command line reports the marked line of the page's tree, and nothing on the corrected one."""
    path = "vllm/v1/attention/backends/mla/plain_extra.py"
    marked = [
        n for n, line in enumerate((followed.root / CASE / path).read_text().splitlines(), 1) if "expect:" in line
    ]
    assert audit(followed, CASE) == (1, [(path, marked[0])])
    assert audit(followed, f"{CASE}_good") == (0, [])


def test_rule_is_unknown_where_the_page_was_not_followed(plain: Copy) -> None:
    """Without the steps there is no such rule: what the others show is the page's doing."""
    done = plain.run("mla-contract explain TYP004")
    assert (done.returncode, "TYP004" in done.stderr) == (2, True)


def test_test_of_the_page_fails_where_the_rule_is_blind(followed: Copy) -> None:
    """The test that the page adds is not vacuous: a rule that reports nothing fails it."""
    path = followed.root / "mla_contract" / "audit" / "rules" / "untyped_field.py"
    text = path.read_text()
    path.write_text(text.replace('== "Any"', '== "Nothing"'))
    try:
        done = followed.run("pytest tests/audit/rules/test_typing.py -q -k untyped_field")
    finally:
        path.write_text(text)
    assert (done.returncode, "1 failed, 1 passed" in done.stdout) == (1, True), done.stdout
