"""The result of an audit, before anything is said about how it looks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mla_contract.audit.finding import Finding, Severity

EXIT_CLEAN, EXIT_FINDINGS, EXIT_FAILED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Report:
    """What an audit found.

    Attributes:
        findings: Findings to report, in the order of their places.
        tree: What the audited tree is called.
        release: Release of vLLM that the tree says it is, or None.
        files: How many files were read.
        allowed: How many findings comments in the source allow.
        baselined: How many findings the baseline holds.
        failed: Whether the tool could not do a part of its work.
        from_cache: Whether the findings were known from an earlier run.
    """

    findings: tuple[Finding, ...]
    tree: str
    release: str | None
    files: int
    allowed: int = 0
    baselined: int = 0
    failed: bool = False
    from_cache: bool = False

    @property
    def exit_code(self) -> int:
        """Return 2 where the tool failed, 1 where an error or a warning remains, else 0."""
        if self.failed:
            return EXIT_FAILED
        return EXIT_FINDINGS if any(finding.severity is not Severity.INFO for finding in self.findings) else EXIT_CLEAN

    def count(self, severity: Severity) -> int:
        """Return how many findings have a severity."""
        return sum(finding.severity is severity for finding in self.findings)

    def counts_by_code(self) -> dict[str, int]:
        """Return how many findings each rule has, ordered by code."""
        return dict(sorted(Counter(finding.code for finding in self.findings).items()))


def one_line(text: str) -> str:
    """Return a text on one line, fit for outputs in which a line is a record."""
    return " ".join(text.split())
