"""Findings about the audit itself: files it could not read, allows and baseline entries that went stale, own faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.project import Project

GROUP = "tool"


def check_nothing(project: Project) -> tuple[Finding, ...]:
    """Return no finding: those of this group arise outside the engine."""
    return ()


def tool_finding(
    rule: Rule, path: str, line: int, message: str, *, severity: Severity | None = None, help: str | None = None
) -> Finding:
    """Return a finding of this group at a line."""
    return Finding(path, line, 1, rule.code, rule.name, GROUP, severity or rule.severity, message, help=help)


UNREADABLE_SOURCE = Rule(
    code="TOOL001",
    name="unreadable-source",
    group=GROUP,
    severity=Severity.ERROR,
    page=Page(
        what="A file or directory of the tree that could not be read or parsed; the rest of the tree is still audited.",
        why="What cannot be read cannot be checked, so a clean report would say too much.",
        incident="A merge leaves conflict markers in a backend; every other rule passes over the file in silence.",
        bad="<<<<<<< ours\nnum_decodes: int = 0\n",
        good="num_decodes: int = 0\n",
    ),
    check=check_nothing,
)
INVALID_ALLOW = Rule(
    code="TOOL002",
    name="invalid-allow",
    group=GROUP,
    severity=Severity.ERROR,
    page=Page(
        what="An `mla: allow` comment without a reason, or with a word that names no rule. It suppresses nothing.",
        why="An exception nobody can explain is never removed.",
        incident="Suppressions outlive the reason they were written for.",
        bad="x = metadata.prefill  # mla: allow missing-field\n",
        good="x = metadata.prefill  # mla: allow missing-field -- prefill is set before graph capture only\n",
    ),
    check=check_nothing,
)
UNUSED_ALLOW = Rule(
    code="TOOL003",
    name="unused-allow",
    group=GROUP,
    severity=Severity.ERROR,
    page=Page(
        what="An `mla: allow` comment for a rule that reports nothing at its line.",
        why="The fault was corrected, or the code moved and the comment did not: the next fault there would be hidden.",
        incident="A suppression stays on a line after a rewrite and hides a new fault of the same rule.",
        bad="total = 0  # mla: allow missing-field -- set by the runner\n",
        good="total = 0\n",
    ),
    check=check_nothing,
)
STALE_BASELINE = Rule(
    code="TOOL004",
    name="stale-baseline-entry",
    group=GROUP,
    severity=Severity.ERROR,
    page=Page(
        what="An entry of the baseline that matches no finding.",
        why="A baseline may only shrink; an entry left behind would let the same fault come back unseen.",
        incident="A baseline keeps its entries after the faults were corrected, and one of them is made again.",
        bad='{"code": "REQ001", "path": "vllm/corrected_long_ago.py", "reason": "..."}\n',
        good="mla-contract audit --baseline FILE --write-baseline   # rewrites it without the entry\n",
    ),
    check=check_nothing,
)
INTERNAL_ERROR = Rule(
    code="TOOL005",
    name="internal-error",
    group=GROUP,
    severity=Severity.ERROR,
    page=Page(
        what="A rule or the engine failed. The other rules ran; the exit code is 2.",
        why="A rule that did not finish must not look like a rule that found nothing.",
        incident="A checker swallows its own exception and reports success.",
        bad="the tree that makes the rule fail, as small as it can be made\n",
        good="the same tree, once the rule is corrected\n",
    ),
    check=check_nothing,
)

TOOL_RULES = (UNREADABLE_SOURCE, INVALID_ALLOW, UNUSED_ALLOW, STALE_BASELINE, INTERNAL_ERROR)
