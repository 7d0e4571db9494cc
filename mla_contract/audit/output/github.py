"""GitHub workflow commands: each finding becomes an annotation of the pull request."""

from __future__ import annotations

from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.output.report import Report

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render_github(report: Report) -> str:
    """Return one workflow command a finding."""
    return "".join(f"{_command(finding)}\n" for finding in report.findings)


def _command(finding: Finding) -> str:
    properties = {
        "file": finding.path,
        "line": str(finding.line),
        "col": str(finding.column),
        "title": f"{finding.code} {finding.rule}",
    }
    message = finding.message
    if finding.condition and finding.condition not in message:
        message = f"{message} (only with {finding.condition})"
    if finding.help:
        message = f"{message}\n{finding.help}"
    listed = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{_COMMANDS[finding.severity]} {listed}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
