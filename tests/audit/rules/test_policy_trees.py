"""Fixture trees of the POLICY and SIGNATURE rules: files laid over a skeleton, with findings marked in place.

``# expect: CODE field [severity]`` names the finding of a line; an empty field stands for any. A tree without markers
is a twin in which nothing must be found.
"""

from __future__ import annotations

import re
from pathlib import Path

from mla_contract.audit.finding import Finding
from mla_contract.audit.project import Project, open_project
from mla_contract.audit.source.tree import SourceFile, SourceTree
from mla_contract.audit.source.walk import source_digest

FIXTURES = Path(__file__).parents[1] / "fixtures"
_EXPECT = re.compile(r"# expect: (\w+)(?: (\S+))?(?: (\w+))?\s*$")

Place = tuple[str, int, str, str, str]
"""Path, line, code, field, severity."""


def fixture_files(group: str, name: str) -> dict[str, str]:
    """Return the files of a fixture, laid over those of its group's skeleton."""
    files: dict[str, str] = {}
    for root in (FIXTURES / group / "skeleton", FIXTURES / group / name):
        files.update({str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*.py"))})
    return files


def project_of(files: dict[str, str], aiter: Path | None = None) -> Project:
    """Return the project of files that are on no disk."""
    data = {path: text.encode() for path, text in files.items()}
    sources = {path: SourceFile(path, data[path], source_digest(data[path])) for path in sorted(data)}
    return open_project(SourceTree(Path("memory"), sources, "memory"), aiter=aiter)


def expected(files: dict[str, str], severity: str) -> list[Place]:
    """Return the findings that the markers ask for; ``severity`` where a marker names none."""
    places: list[Place] = []
    for path, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            match = _EXPECT.search(line)
            if match is not None:
                places.append((path, number, match.group(1), match.group(2) or "", match.group(3) or severity))
    return sorted(places)


def places_of(findings: list[Finding], wanted: list[Place]) -> list[Place]:
    """Return findings as places, without the field where the marker of the line names none."""
    silent = {(path, line) for path, line, _, field, _ in wanted if not field}
    return sorted(
        (f.path, f.line, f.code, "" if (f.path, f.line) in silent else f.field or "", str(f.severity)) for f in findings
    )


def test_expected_markers_name_line_code_field_and_severity() -> None:
    """The markers are read: a tree whose markers were overlooked would pass with no finding at all."""
    files = {"a.py": "x = 1  # expect: POL001 field\ny = 2  # expect: POL002 other info\nz = 3  # expect: POL003\n"}
    assert expected(files, "warning") == [
        ("a.py", 1, "POL001", "field", "warning"),
        ("a.py", 2, "POL002", "other", "info"),
        ("a.py", 3, "POL003", "", "warning"),
    ]
