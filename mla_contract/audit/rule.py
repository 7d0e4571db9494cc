"""What a rule is: a page to explain it and a function over the audited project."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mla_contract.audit.finding import Finding, Severity

if TYPE_CHECKING:
    import ast

    from mla_contract.audit.project import Project


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a rule: what it says, why it exists, and one example of each kind.

    Attributes:
        what: What the rule reports.
        why: What goes wrong without it.
        incident: The public incident it comes from.
        bad: Source that it reports.
        good: The same, corrected.
    """

    what: str
    why: str
    incident: str
    bad: str
    good: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the audit.

    Attributes:
        code: Stable code.
        name: Name that reads after "allow".
        group: Group that ``--select`` accepts too.
        severity: Severity of its findings unless the rule lowers it.
        page: Its page.
        check: Returns the findings of the rule in a project.
    """

    code: str
    name: str
    group: str
    severity: Severity
    page: Page
    check: Callable[[Project], Iterable[Finding]]

    def finding(
        self,
        path: str,
        node: ast.AST,
        message: str,
        *,
        severity: Severity | None = None,
        cls: str | None = None,
        field: str | None = None,
        reader: str | None = None,
        guard: str | None = None,
        condition: str | None = None,
        help: str | None = None,
    ) -> Finding:
        """Return a finding of this rule at a node of a file."""
        return Finding(
            path=path,
            line=getattr(node, "lineno", 1),
            column=getattr(node, "col_offset", 0) + 1,
            code=self.code,
            rule=self.name,
            group=self.group,
            severity=severity or self.severity,
            message=message,
            cls=cls,
            field=field,
            reader=reader,
            guard=guard,
            condition=condition,
            help=help,
        )
