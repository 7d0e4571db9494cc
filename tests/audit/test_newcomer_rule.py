"""The page "add a rule", followed to the letter in a copy of the repository: its blocks written, its commands run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "add-a-rule.md"
BASE = "tests/audit/fixtures/drift/base"
CASE = "tests/audit/fixtures/typing/untyped_field"
COPIED = ("mla_contract", "tests/__init__.py", "tests/conftest.py", "tests/audit", "docs/rules", "pyproject.toml")
TIMEOUT = 300

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROGRAMS = {
    "python": [],
    "pytest": ["-m", "pytest", "-p", "no:cacheprovider"],
    "mla-contract": ["-m", "mla_contract.cli"],
}


@dataclass(frozen=True)
class Copy:
    """A copy of the repository.

    Attributes:
        root: Its directory.
    """

    root: Path

    def write(self, block: str) -> None:
        """Write a file: the first line is a comment with its name, the rest is its text."""
        name, _, text = block.partition("\n")
        path = self.root / name.removeprefix("# ")
        assert not path.exists(), f"{name}: the page writes a file that is there already"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def change(self, block: str) -> None:
        """Change a file as a diff says: lines with a space or a minus stand there once, one after the other."""
        name, *lines = block.splitlines()
        path = self.root / name.removeprefix(" # ")
        old, new = ("".join(f"{line[1:]}\n" for line in lines if line[0] in signs) for signs in (" -", " +"))
        text = path.read_text()
        assert text.count(old) == 1, f"{path}: {old!r} stands there {text.count(old)} times"
        path.write_text(text.replace(old, new))

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the page."""
        program, *arguments = command.split()
        return subprocess.run(
            [sys.executable, *_PROGRAMS[program], *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root), "MLA_CONTRACT_CACHE": str(self.root / "cache")},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    def audit(self, case: str) -> tuple[int, list[tuple[str, int]]]:
        """Return the exit code and the findings of the new rule on a tree of the page, laid over the base."""
        tree = self.root / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        for part in (BASE, case):
            shutil.copytree(self.root / part, tree, dirs_exist_ok=True)
        (tree / "vllm" / "__init__.py").touch()
        done = self.run(f"mla-contract audit {tree} --select TYP004 --format json --no-cache")
        return done.returncode, [(f["path"], f["line"]) for f in json.loads(done.stdout)["findings"]]


def blocks(kind: str) -> list[str]:
    """Return the blocks of the page that are of a kind, in their order."""
    return [text for found, text in _BLOCK.findall(PAGE.read_text(encoding="utf-8")) if found == kind]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """Return a copy of the repository that nothing is changed in."""
    return copy(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """Return a copy of the repository in which all blocks of the page have been written."""
    made = copy(tmp_path_factory.mktemp("followed"))
    for block in blocks("python"):
        made.write(block)
    for block in blocks("diff"):
        made.change(block)
    yield made


def copy(root: Path) -> Copy:
    """Return a copy of what a rule needs of the repository."""
    for name in COPIED:
        source, target = ROOT / name, root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return Copy(root)


def test_page_has_numbered_steps_and_every_kind_of_block() -> None:
    """The steps are numbered without a gap, and the page has files, changes and commands."""
    numbers = [int(n) for n in re.findall(r"^## (\d+)\. ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= 6
    assert [len(blocks(kind)) for kind in ("python", "diff", "console")] == [3, 4, 1]


def test_page_commands_succeed_after_its_steps(followed: Copy) -> None:
    """The page is generated, explained, and the tests that the page names pass, those of the new rule among them."""
    for line in blocks("console")[0].splitlines():
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
    assert followed.audit(CASE) == (1, [(path, marked[0])])
    assert followed.audit(f"{CASE}_good") == (0, [])


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
