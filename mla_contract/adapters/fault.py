"""The error of every planner: it names the row, what was expected and found, and carries both as data."""

from __future__ import annotations

from collections.abc import Mapping

from mla_contract.errors import InvalidContract


class InvalidBatch(InvalidContract):
    """A batch, or a configuration, that no planner may pass on.

    Attributes:
        what: The object and the field at fault.
        row: Index of the request at fault; None where no single request is.
        facts: What was expected and found, by name.
        help: What to do.
    """

    def __init__(self, what: str, facts: Mapping[str, object], *, row: int | None = None, help: str = "") -> None:
        self.what = what
        self.row = row
        self.facts = dict(facts)
        self.help = help
        place = what if row is None else f"{what}, row {row}"
        lines = [place, *(f"  {name:<8}  {value}" for name, value in self.facts.items())]
        if help:
            lines.append(f"  help      {help}")
        super().__init__("\n".join(lines))
