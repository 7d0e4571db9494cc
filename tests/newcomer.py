"""Pages for newcomers, followed to the letter in a copy of the repository: their blocks written, their commands run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
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
        program, *arguments = shlex.split(command)
        return subprocess.run(
            [sys.executable, *_PROGRAMS[program], *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root), "MLA_CONTRACT_CACHE": str(self.root / "cache")},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )


def blocks(page: Path, kind: str) -> list[str]:
    """Return the blocks of a page that are of a kind, in their order."""
    return [text for found, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if found == kind]


def steps_of(page: Path) -> list[int]:
    """Return the numbers of the page's steps."""
    return [int(n) for n in re.findall(r"^## (\d+)\. ", page.read_text(encoding="utf-8"), re.MULTILINE)]


def copy_of(root: Path, names: tuple[str, ...]) -> Copy:
    """Return a copy of the named parts of the repository."""
    for name in names:
        source, target = ROOT / name, root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return Copy(root)


def followed(root: Path, names: tuple[str, ...], page: Path) -> Copy:
    """Return a copy in which every block of a page has been written: files first, then changes."""
    made = copy_of(root, names)
    for block in blocks(page, "python"):
        made.write(block)
    for block in blocks(page, "diff"):
        made.change(block)
    return made
