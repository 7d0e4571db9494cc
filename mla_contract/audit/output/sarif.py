"""SARIF 2.1.0 output, for code scanning services; every rule is declared, whether it found anything or not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from mla_contract import __version__
from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.output.report import Report
from mla_contract.audit.rule import Rule
from mla_contract.audit.source.cache import digest_of

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render_sarif(report: Report, rules: Sequence[Rule]) -> str:
    """Return the report as a SARIF log of one run."""
    indices = {rule.code: index for index, rule in enumerate(rules)}
    seen: Counter[str] = Counter()
    results = []
    for finding in report.findings:
        fingerprint = _fingerprint(finding)
        results.append(_result(finding, indices, f"{fingerprint}:{seen[fingerprint]}"))
        seen[fingerprint] += 1
    driver = {"name": "mla-contract", "version": __version__, "rules": [_declared(rule) for rule in rules]}
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not report.failed, "exitCode": report.exit_code}],
        "results": results,
        "columnKind": "unicodeCodePoints",
        "properties": {"tree": report.tree, "release": report.release},
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _declared(rule: Rule) -> dict[str, Any]:
    page = rule.page
    text = f"{page.what}\n\n{page.why}\n\nIncident: {page.incident}"
    markdown = f"{page.what}\n\n{page.why}\n\nIncident: {page.incident}\n\n"
    markdown += f"Reported:\n```python\n{page.bad.strip()}\n```\nCorrected:\n```python\n{page.good.strip()}\n```\n"
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.name.replace("-", " ")},
        "fullDescription": {"text": page.what},
        "help": {"text": text, "markdown": markdown},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {"tags": [rule.group]},
    }


def _result(finding: Finding, indices: dict[str, int], fingerprint: str) -> dict[str, Any]:
    message = finding.message if finding.help is None else f"{finding.message}\n{finding.help}"
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(finding.path), "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": finding.line, "startColumn": finding.column},
        }
    }
    if finding.cls is not None:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.cls, "kind": "type"}]
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "level": _LEVELS[finding.severity],
        "message": {"text": message},
        "locations": [location],
        "partialFingerprints": {"mlaContract/v1": fingerprint},
        "properties": {
            "field": finding.field,
            "reader": finding.reader,
            "guard": finding.guard,
            "condition": finding.condition,
        },
    }
    if finding.code in indices:
        result["ruleIndex"] = indices[finding.code]
    return result


def _fingerprint(finding: Finding) -> str:
    """Return what stays the same when lines move."""
    return digest_of([finding.code, finding.path, finding.cls or "", finding.field or "", finding.reader or ""])
