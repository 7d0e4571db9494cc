"""What the pages say in code: the files that their blocks make up, and the commands that they tell to run."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.contract.mypy_runs import ROOT

_FILE_BLOCK = re.compile(r'^```\w+ title="([\w./]+)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_COMMANDS = re.compile(r"^```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """A page, and the package that it makes.

    Attributes:
        name: Its file in ``docs``.
        example: The same package in ``examples``.
        group: The group of entry points that it is about.
    """

    name: str
    example: str
    group: str

    @property
    def text(self) -> str:
        """The page."""
        return (ROOT / "docs" / self.name).read_text("utf-8")

    @property
    def files(self) -> dict[str, str]:
        """Each file of the package: its blocks, one after the other."""
        found: dict[str, str] = {}
        for name, block in _FILE_BLOCK.findall(self.text):
            found[name] = f"{found[name]}\n\n{block}" if name in found else block
        return found

    @property
    def commands(self) -> list[str]:
        """The commands, line by line."""
        return [line for block in _COMMANDS.findall(self.text) for line in block.splitlines()]

    @property
    def entries(self) -> dict[str, str]:
        """The entry points that its pyproject.toml states in the group."""
        project = tomllib.loads(self.files["pyproject.toml"])["project"]
        found: dict[str, str] = project["entry-points"][self.group]
        return found

    def write(self, folder: Path) -> Path:
        """Write the package into a folder, and return the folder."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        return folder


BACKEND = Page("add-a-backend.md", "examples/toy_backend", "mla_contract.backends")
PROVIDER = Page("add-a-provider.md", "examples/toy_provider", "mla_contract.providers")
PAGES = (BACKEND, PROVIDER)
