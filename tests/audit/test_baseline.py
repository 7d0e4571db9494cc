"""The baseline: findings that are lived with, and that may only become fewer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mla_contract.audit.baseline import RECORDED, apply_baseline, read_baseline, write_baseline
from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.source import AuditError
from mla_contract.audit.tool_rules import UNREADABLE_SOURCE, tool_finding

CODES = frozenset({"REQ001", "POL001", "TOOL004"})


def finding(field: str | None = "x", line: int = 1, code: str = "REQ001") -> Finding:
    """Return a finding about a field."""
    return Finding(
        "a.py", line, 1, code, "name", "required", Severity.ERROR, f"text {line}", cls="m.A", field=field, reader="m:f"
    )


def entry(**changes: Any) -> dict[str, Any]:
    """Return an entry of the file with some values changed."""
    values = {"code": "REQ001", "path": "a.py", "class": "m.A", "field": "x", "reader": "m:f", "reason": "later"}
    return {**values, **changes}


def write(path: Path, *entries: object) -> Path:
    """Write a baseline and return its path."""
    path.write_text(json.dumps({"version": 1, "entries": entries}))
    return path


def remaining(path: Path, *findings: Finding, codes: frozenset[str] = CODES) -> list[tuple[str, str | None]]:
    """Return code and field of what remains."""
    left, _ = apply_baseline(findings, read_baseline(path), codes, path)
    return [(each.code, each.field) for each in left]


def test_apply_baseline_known_finding_is_taken_away(tmp_path: Path) -> None:
    """A finding in the baseline is not reported, wherever its line has moved; another one is."""
    path = write(tmp_path / "b.json", entry())
    assert remaining(path, finding(line=1)) == []
    assert remaining(path, finding(line=99)) == []
    assert remaining(path, finding(), finding("y")) == [("REQ001", "y")]


@pytest.mark.parametrize("changes", [{"code": "POL001"}, {"path": "b.py"}, {"class": None}, {"reader": "m:g"}])
def test_apply_baseline_entry_about_something_else_is_stale(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Every part of the identity counts."""
    path = write(tmp_path / "b.json", entry(**changes))
    assert remaining(path, finding()) == [("REQ001", "x"), ("TOOL004", None)]


def test_apply_baseline_counts_how_often(tmp_path: Path) -> None:
    """One entry is for one finding, though two look the same."""
    path = write(tmp_path / "b.json", entry())
    assert remaining(path, finding(line=1), finding(line=2)) == [("REQ001", "x")]
    assert remaining(write(path, entry(), entry()), finding(line=1), finding(line=2)) == []


def test_apply_baseline_stale_entry_of_a_rule_not_reported_is_left_alone(tmp_path: Path) -> None:
    """With --select, entries of other rules are not judged."""
    path = write(tmp_path / "b.json", entry(code="POL001"))
    assert remaining(path, codes=frozenset({"REQ001"})) == []
    assert remaining(path) == [("TOOL004", None)]


def test_write_baseline_absent_file_is_created_and_covers_everything(tmp_path: Path) -> None:
    """After writing nothing is left to report, except what is about the audit itself."""
    path = tmp_path / "new" / "b.json"
    unreadable = tool_finding(UNREADABLE_SOURCE, "b.py", 1, "no")
    findings = [finding("x"), finding("x", 2), finding(None), unreadable]
    assert write_baseline(path, findings, CODES) == 3
    assert {each.reason for each in read_baseline(path)} == {RECORDED}
    assert remaining(path, *findings) == [("TOOL001", None)]


def test_write_baseline_smaller_set_shrinks_and_keeps_reasons(tmp_path: Path) -> None:
    """What was corrected leaves the file; what stays keeps the reason that people wrote."""
    path = write(tmp_path / "b.json", entry(), entry(field="y"), entry(field="y"))
    assert write_baseline(path, [finding("y")], CODES) == 1
    assert [(each.identity[3], each.reason) for each in read_baseline(path)] == [("y", "later")]


@pytest.mark.parametrize("new", [[finding("x"), finding("y")], [finding("x"), finding("x", 2)]], ids=["other", "more"])
def test_write_baseline_larger_set_is_refused(tmp_path: Path, new: list[Finding]) -> None:
    """A baseline does not grow, and the file stays as it is."""
    path = write(tmp_path / "b.json", entry())
    before = path.read_text()
    with pytest.raises(AuditError, match="would grow by 1"):
        write_baseline(path, new, CODES)
    assert path.read_text() == before


def test_write_baseline_same_set_twice_writes_the_same(tmp_path: Path) -> None:
    """Order of findings does not matter."""
    path = tmp_path / "b.json"
    write_baseline(path, [finding("x"), finding("y")], CODES)
    before = path.read_text()
    write_baseline(path, [finding("y", 5), finding("x", 9)], CODES)
    assert path.read_text() == before


def test_write_baseline_entries_of_rules_not_reported_are_kept(tmp_path: Path) -> None:
    """With --select, what other rules wrote stays."""
    path = write(tmp_path / "b.json", entry(), entry(code="POL001"))
    write_baseline(path, [], frozenset({"REQ001"}))
    assert [each.identity[0] for each in read_baseline(path)] == ["POL001"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2, "entries": []}',
        '{"version": 1}',
        '{"version": 1, "entries": {}}',
        "[" * 100_000,
        json.dumps({"version": 1, "entries": [1]}),
        json.dumps({"version": 1, "entries": [{}]}),
        json.dumps({"version": 1, "entries": [entry(more=1)]}),
        json.dumps({"version": 1, "entries": [entry(code=None)]}),
        json.dumps({"version": 1, "entries": [entry(field=1)]}),
        json.dumps({"version": 1, "entries": [entry(reason=" ")]}),
    ],
)
def test_read_baseline_other_document_is_refused(tmp_path: Path, text: str) -> None:
    """A file that is not a baseline is not taken for an empty one."""
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(AuditError, match=r"b\.json"):
        read_baseline(path)


def test_read_baseline_good_document_is_read(tmp_path: Path) -> None:
    """The control of the rejections above."""
    assert [each.reason for each in read_baseline(write(tmp_path / "b.json", entry()))] == ["later"]


def test_read_baseline_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    """The first run is told what to do."""
    with pytest.raises(AuditError) as caught:
        read_baseline(tmp_path / "none.json")
    assert "--write-baseline" in caught.value.help
