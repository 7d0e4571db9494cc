"""How a report leaves the audit: text for people and problem matchers, json, GitHub commands, SARIF."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from mla_contract.audit.output.report import Report
from mla_contract.audit.rule import Rule

__all__ = ["Format", "Report", "render"]


class Format(StrEnum):
    """The formats of ``--format``."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def render(report: Report, rules: Sequence[Rule], format: Format, *, verbose: bool = False) -> str:
    """Return a report in a format; a text that is not empty ends in a newline.

    Args:
        report: What the audit found.
        rules: All rules, which SARIF declares.
        format: The format.
        verbose: Whether text has the indented lines with reader, guard, condition and help.
    """
    if format is Format.JSON:
        from mla_contract.audit.output.json import render_json

        return render_json(report)
    if format is Format.SARIF:
        from mla_contract.audit.output.sarif import render_sarif

        return render_sarif(report, rules)
    if format is Format.GITHUB:
        from mla_contract.audit.output.github import render_github

        return render_github(report)
    from mla_contract.audit.output.text import render_text

    return render_text(report, verbose=verbose)
