"""What the audit reports: one record per place, stable enough to be diffed, baselined and annotated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters: an ``error`` breaks a reachable path, a ``warning`` may, ``info`` informs."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in the audited tree that a rule objects to.

    Attributes:
        path: File, relative to the root of its tree, with forward slashes.
        line: 1-based line.
        column: 1-based column.
        code: Code of the rule, such as ``REQ001``.
        rule: Name of the rule, such as ``missing-field``; it reads after "allow".
        group: ``required``, ``policy``, ``drift``, ``typing``, ``signature`` or ``tool``.
        severity: Severity of this finding; a rule may lower its own under a condition.
        message: One sentence: what is wrong, with the names that it takes to act on it.
        cls: Qualified name of the class concerned (``package.module.Class``).
        field: Path of the field concerned (``prefill.chunked_context``).
        reader: Function that reads the field, ``module:qualified.name``.
        guard: The conditions that the read stands behind, as written in the source.
        condition: The capability without which the place is not reached, or None.
        help: What to do about it.
    """

    path: str
    line: int
    column: int
    code: str
    rule: str
    group: str
    severity: Severity
    message: str
    cls: str | None = None
    field: str | None = None
    reader: str | None = None
    guard: str | None = None
    condition: str | None = None
    help: str | None = None

    def sort_key(self) -> tuple[str, int, int, str, str, str]:
        """Return the key that orders findings by place, then by rule and subject."""
        return (self.path, self.line, self.column, self.code, self.cls or "", self.field or "")
