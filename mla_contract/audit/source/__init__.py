"""How source reaches the audit: trees, archives, releases and caches. Source is read here, never imported or run."""

from __future__ import annotations

from dataclasses import dataclass

from mla_contract.audit.finding import Severity


class AuditError(Exception):
    """The audit cannot do its work; the command line turns it into exit code 2.

    Attributes:
        message: What is wrong, with the path, word or version concerned.
        help: What to do about it.
        expected: What would have been accepted, or None where the message says it.
        got: What was found instead, or None where the message says it.
    """

    def __init__(self, message: str, help: str, *, expected: str | None = None, got: str | None = None) -> None:
        """Keep the parts, so that callers can render them as they need."""
        super().__init__(message)
        self.message = message
        self.help = help
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        """Return the message with one indented line for each part that is known."""
        parts = (("expected", self.expected), ("got", self.got), ("help", self.help))
        return "\n".join([self.message, *(f"  {name:<10}{text}" for name, text in parts if text)])


class UnreadableSource(Exception):
    """A source file cannot be decoded.

    Attributes:
        path: File, relative to the root of its tree.
        line: 1-based line of the first byte that cannot be decoded.
        reason: Why it cannot be decoded.
    """

    def __init__(self, path: str, line: int, reason: str) -> None:
        """Keep the place and the reason."""
        super().__init__(f"{path}:{line}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True, order=True)
class SourceProblem:
    """A part of the tree that the audit could not look at.

    Attributes:
        path: File or directory, relative to the root of its tree.
        line: 1-based line, 1 where the problem has none.
        reason: Why it was left out.
        severity: ``error`` where source is lost, ``info`` where nothing that Python would import is.
    """

    path: str
    line: int
    reason: str
    severity: Severity = Severity.ERROR
