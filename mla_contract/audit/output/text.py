"""Text output, one line a finding: ``path:line: error: message [CODE]``, which mypy's problem matchers annotate."""

from __future__ import annotations

from collections.abc import Iterator

from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.output.report import Report, one_line

_WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render_text(report: Report, *, verbose: bool = False) -> str:
    """Return the findings as text, empty where there are none.

    Args:
        report: What the audit found.
        verbose: Whether indented lines with all that is known follow each finding.
    """
    lines: list[str] = []
    for finding in report.findings:
        lines.append(finding_line(finding))
        if verbose:
            lines.extend(_details(finding))
    return "".join(f"{line}\n" for line in lines)


def finding_line(finding: Finding) -> str:
    """Return the one line of a finding; a condition that its message does not name is added."""
    message = one_line(finding.message)
    if finding.condition and finding.condition not in message:
        message = f"{message} (only with {one_line(finding.condition)})"
    return f"{finding.path}:{finding.line}: {_WORDS[finding.severity]}: {message} [{finding.code}]"


def _details(finding: Finding) -> Iterator[str]:
    named = (
        ("class", finding.cls),
        ("field", finding.field),
        ("reader", finding.reader),
        ("guard", finding.guard),
        ("condition", finding.condition),
        ("help", finding.help),
    )
    for name, value in named:
        if value:
            yield f"    {name:<10}{one_line(value)}"
