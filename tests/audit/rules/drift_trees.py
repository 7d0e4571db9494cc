"""The small trees of the DRIFT and TYPING rules, their expected findings marked in place, laid over one clean base.

``# expect: CODE field [severity]`` names a finding of its line; without a severity it is that of the rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from mla_contract.audit.finding import Finding
from mla_contract.audit.project import Project, open_project
from mla_contract.audit.rule import Rule
from mla_contract.audit.source.tree import SourceFile, SourceTree
from mla_contract.audit.source.walk import source_digest

FIXTURES = Path(__file__).parent.parent / "fixtures"
BASE = FIXTURES / "drift" / "base"

_EXPECT = re.compile(r"# expect: (\w+) ([\w.]+)(?: \[(\w+)\])?")

Place = tuple[str, int, str, str, str]
"""Path, line, code, field, severity."""


def case_files(case: Path) -> dict[str, str]:
    """Return the files of a case, laid over those of the base."""
    files: dict[str, str] = {}
    for root in (BASE, case):
        files.update({path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*.py"))})
    return files


def open_files(files: dict[str, str]) -> Project:
    """Return the project of files that are on no disk."""
    sources = {
        path: SourceFile(path, text.encode(), source_digest(text.encode())) for path, text in sorted(files.items())
    }
    return open_project(SourceTree(Path("memory"), sources, "memory"))


def open_case(case: Path) -> Project:
    """Return the project of a case."""
    return open_files(case_files(case))


def marked(case: Path, rules: Iterable[Rule]) -> list[Place]:
    """Return the findings that the markers of a case ask for."""
    severities = {rule.code: str(rule.severity) for rule in rules}
    return sorted(
        (path, number, code, field, severity or severities[code])
        for path, text in case_files(case).items()
        for number, line in enumerate(text.splitlines(), 1)
        for code, field, severity in _EXPECT.findall(line)
        if code in severities
    )


def found(project: Project, rules: Iterable[Rule]) -> list[Place]:
    """Return the places of the findings of rules."""
    return sorted((f.path, f.line, f.code, f.field or "", str(f.severity)) for f in findings(project, rules))


def findings(project: Project, rules: Iterable[Rule]) -> list[Finding]:
    """Return the findings of rules."""
    return [finding for rule in rules for finding in rule.check(project)]
