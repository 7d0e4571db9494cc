"""Formats of the report: what machines read has a fixed shape, what people read fits problem matchers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mla_contract.audit.docs import INDEX, rule_pages, stale_pages, write_pages
from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.output import Format, Report, render
from mla_contract.audit.output.json import finding_as_json, finding_from_json
from mla_contract.audit.output.table import NO_CLASS, print_summary, summary_rows, totals
from mla_contract.audit.rule import Page, Rule
from mla_contract.audit.tool_rules import TOOL_RULES, check_nothing

MATCHER = re.compile(r"^(.+):(\d+):\s(error|warning):\s(.+)$")
KEYS = [
    *("path", "line", "column", "code", "rule", "group", "severity"),
    *("class", "field", "reader", "guard", "condition", "message", "help"),
]
RULE = Rule(
    "REQ001",
    "missing-field",
    "required",
    Severity.ERROR,
    Page("What.", "Why.", "Incident.", "bad", "good"),
    check_nothing,
)


def finding(**changes: Any) -> Finding:
    """Return a finding of the rule with some values changed."""
    values: dict[str, Any] = {
        "path": "vllm/v1/a.py",
        "line": 3,
        "column": 5,
        "code": "REQ001",
        "rule": "missing-field",
        "group": "required",
        "severity": Severity.ERROR,
        "message": "A has no num_decodes",
    }
    return Finding(**{**values, **changes})


FULL = finding(
    severity=Severity.WARNING,
    cls="vllm.v1.a.A",
    field="prefill.x",
    reader="vllm.layer:Layer.forward",
    guard="is_sparse and n > 0",
    condition="context parallel",
    help="declare it",
)


def report(*findings: Finding, **changes: Any) -> Report:
    """Return a report of findings."""
    values: dict[str, Any] = {"tree": "tree", "release": "0.33.0", "files": 7}
    return Report(findings=findings, **{**values, **changes})


def test_text_lines_match_the_problem_matcher() -> None:
    """Errors and warnings are annotated; notes are not, and say so."""
    text = render(report(finding(), FULL, finding(severity=Severity.INFO)), [RULE], Format.TEXT)
    lines = text.splitlines()
    matches = [MATCHER.match(line) for line in lines]
    assert [match and match.group(1, 2, 3) for match in matches] == [
        ("vllm/v1/a.py", "3", "error"),
        ("vllm/v1/a.py", "3", "warning"),
        None,
    ]
    assert lines[0] == "vllm/v1/a.py:3: error: A has no num_decodes [REQ001]"
    assert lines[2] == "vllm/v1/a.py:3: note: A has no num_decodes [REQ001]"


def test_text_condition_is_named_once() -> None:
    """A conditional finding says its condition, unless its message does already."""
    assert "(only with context parallel) [REQ001]" in render(report(FULL), [], Format.TEXT)
    named = finding(condition="context parallel", message="missing under context parallel")
    assert "only with" not in render(report(named), [], Format.TEXT)


def test_text_message_of_many_lines_stays_one_line() -> None:
    """A line of the output is one finding."""
    assert render(report(finding(message="a\n  b\rc")), [], Format.TEXT).splitlines() == [
        "vllm/v1/a.py:3: error: a b c [REQ001]"
    ]


def test_text_verbose_adds_what_is_known() -> None:
    """The indented lines name every part that the finding has."""
    lines = render(report(FULL), [], Format.TEXT, verbose=True).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["class", "field", "reader", "guard", "condition", "help"]
    assert all(line.startswith("    ") and not MATCHER.match(line) for line in lines[1:])


def test_text_clean_report_is_empty() -> None:
    """Nothing found, nothing printed."""
    assert render(report(), [RULE], Format.TEXT) == ""


def test_json_every_key_is_always_there() -> None:
    """A consumer needs no defaults: absent is null."""
    document = json.loads(render(report(finding(), FULL), [RULE], Format.JSON))
    assert list(document) == ["tool", "version", "tree", "release", "findings", "summary"]
    assert [list(item) for item in document["findings"]] == [KEYS, KEYS]
    assert document["findings"][0]["class"] is None
    assert document["findings"][1]["class"] == "vllm.v1.a.A"
    assert document["findings"][1]["severity"] == "warning"
    assert document["summary"]["errors"] == document["summary"]["warnings"] == 1
    assert document["summary"]["by_code"] == {"REQ001": 2}
    assert document["summary"]["exit_code"] == 1


def test_json_does_not_depend_on_the_cache() -> None:
    """A warm run prints what the cold run printed."""
    assert render(report(FULL), [], Format.JSON) == render(report(FULL, from_cache=True), [], Format.JSON)


def test_json_finding_survives_the_round_trip() -> None:
    """What the cache holds comes back equal."""
    for each in (finding(), FULL):
        assert finding_from_json(json.loads(json.dumps(finding_as_json(each)))) == each


def test_github_commands_escape_what_would_end_them() -> None:
    """Percent signs, newlines, and in properties colons and commas too, are escaped."""
    text = render(report(finding(path="a:b,c%.py", message="50%\nof: a, b", help="do\rit")), [], Format.GITHUB)
    assert text == (
        "::error file=a%3Ab%2Cc%25.py,line=3,col=5,title=REQ001 missing-field::50%25%0Aof: a, b%0Ado%0Dit\n"
    )


def test_github_commands_follow_the_severity() -> None:
    """Each severity has its command."""
    text = render(report(*(finding(severity=severity) for severity in Severity)), [], Format.GITHUB)
    assert [line.split()[0] for line in text.splitlines()] == ["::error", "::warning", "::notice"]


def test_sarif_has_the_shape_of_the_standard() -> None:
    """The log, the run, the driver, its rules and the results have what SARIF 2.1.0 requires of them."""
    rules = [RULE, *TOOL_RULES]
    log = json.loads(render(report(FULL, finding(path="a b/ü.py")), rules, Format.SARIF))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "mla-contract"
    assert [item["id"] for item in driver["rules"]] == [rule.code for rule in rules]
    for item in driver["rules"]:
        assert item["shortDescription"]["text"]
        assert item["fullDescription"]["text"]
        assert item["help"]["text"]
        assert "```python" in item["help"]["markdown"]
        assert item["defaultConfiguration"]["level"] in ("error", "warning", "note")
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        region = result["locations"][0]["physicalLocation"]["region"]
        assert region["startLine"] >= 1
        assert region["startColumn"] >= 1
    uris = [item["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for item in run["results"]]
    assert uris == ["vllm/v1/a.py", "a%20b/%C3%BC.py"]
    assert run["invocations"] == [{"executionSuccessful": True, "exitCode": 1}]


def test_sarif_fingerprints_ignore_lines_and_tell_repeats_apart() -> None:
    """A finding that moves keeps its fingerprint; the second of the same kind has another."""

    def prints(*findings: Finding) -> list[str]:
        results = json.loads(render(report(*findings), [RULE], Format.SARIF))["runs"][0]["results"]
        return [result["partialFingerprints"]["mlaContract/v1"] for result in results]

    assert prints(finding(line=3)) == prints(finding(line=99))
    assert len(set(prints(finding(line=3), finding(line=4), finding(field="y")))) == 3


@pytest.mark.parametrize(
    ("severities", "failed", "code"),
    [
        ([], False, 0),
        ([Severity.INFO], False, 0),
        ([Severity.WARNING], False, 1),
        ([Severity.ERROR, Severity.INFO], False, 1),
        ([], True, 2),
        ([Severity.ERROR], True, 2),
    ],
)
def test_exit_code_follows_what_remains(severities: list[Severity], failed: bool, code: int) -> None:
    """Notes do not make the audit fail, and a tool that failed says so above all."""
    assert report(*(finding(severity=severity) for severity in severities), failed=failed).exit_code == code


def test_summary_counts_by_class_and_rule() -> None:
    """Each class has a row, those of one name with their module, and places without a class come last."""
    findings = [
        finding(cls="a.One"),
        finding(cls="a.One", code="POL001"),
        finding(cls="a.Same"),
        finding(cls="b.Same"),
        finding(),
    ]
    assert summary_rows(report(*findings)) == (
        ["POL001", "REQ001"],
        [("One", [1, 1]), ("a.Same", [0, 1]), ("b.Same", [0, 1]), (NO_CLASS, [0, 1])],
    )


def test_print_summary_shows_table_and_totals() -> None:
    """The table names classes and codes; markup in names is shown as it is."""
    console = Console(width=120, record=True, quiet=False, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    print_summary(report(finding(cls="a.One[red]"), allowed=2, baselined=1), console)
    text = console.export_text()
    assert "One[red]" in text
    assert "REQ001" in text
    assert "1 error, 0 warnings, 0 notes in 7 files of vLLM 0.33.0 (tree); 2 allowed" in text


def test_totals_unknown_release_is_said() -> None:
    """A tree without a version is not given one."""
    assert "unknown release" in totals(report(release=None, from_cache=True))


def test_rule_pages_have_all_parts_and_are_kept_up_to_date(tmp_path: Path) -> None:
    """Pages are written once, then compared; a page of no rule is removed."""
    pages = rule_pages([RULE, *TOOL_RULES])
    assert set(pages) == {INDEX, "REQ001.md", *(f"{rule.code}.md" for rule in TOOL_RULES)}
    for part in (
        "# REQ001 missing-field",
        "What.",
        "Why.",
        "Incident.",
        "bad",
        "good",
        "# mla: allow missing-field --",
    ):
        assert part in pages["REQ001.md"]
    assert stale_pages(tmp_path, pages) == sorted(pages)
    write_pages(tmp_path, pages)
    assert stale_pages(tmp_path, pages) == []
    (tmp_path / "OLD001.md").write_text("")
    (tmp_path / "REQ001.md").write_text("edited")
    assert write_pages(tmp_path, pages) == ["OLD001.md", "REQ001.md"]
    assert stale_pages(tmp_path, pages) == []
