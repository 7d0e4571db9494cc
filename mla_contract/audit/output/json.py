"""JSON output: every key of every finding is always there, null where there is nothing to say."""

from __future__ import annotations

import json
from typing import Any

from mla_contract import __version__
from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.output.report import Report


def render_json(report: Report) -> str:
    """Return the report as a JSON document that depends on the tree and the options only."""
    document = {
        "tool": "mla-contract",
        "version": __version__,
        "tree": report.tree,
        "release": report.release,
        "findings": [finding_as_json(finding) for finding in report.findings],
        "summary": {
            "files": report.files,
            "findings": len(report.findings),
            "errors": report.count(Severity.ERROR),
            "warnings": report.count(Severity.WARNING),
            "infos": report.count(Severity.INFO),
            "allowed": report.allowed,
            "baselined": report.baselined,
            "by_code": report.counts_by_code(),
            "exit_code": report.exit_code,
        },
    }
    return json.dumps(document, indent=2) + "\n"


def finding_as_json(finding: Finding) -> dict[str, Any]:
    """Return a finding as a JSON object."""
    return {
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "code": finding.code,
        "rule": finding.rule,
        "group": finding.group,
        "severity": finding.severity.value,
        "class": finding.cls,
        "field": finding.field,
        "reader": finding.reader,
        "guard": finding.guard,
        "condition": finding.condition,
        "message": finding.message,
        "help": finding.help,
    }


def finding_from_json(item: dict[str, Any]) -> Finding:
    """Return the finding of a JSON object.

    Raises:
        KeyError: A key is missing.
        ValueError: The severity is none.
    """
    return Finding(
        path=item["path"],
        line=item["line"],
        column=item["column"],
        code=item["code"],
        rule=item["rule"],
        group=item["group"],
        severity=Severity(item["severity"]),
        message=item["message"],
        cls=item["class"],
        field=item["field"],
        reader=item["reader"],
        guard=item["guard"],
        condition=item["condition"],
        help=item["help"],
    )
