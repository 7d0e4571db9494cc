"""The summary under a text report: a table of classes and rules, and one line of totals."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mla_contract.audit.finding import Severity
from mla_contract.audit.output.report import Report

if TYPE_CHECKING:
    from rich.console import Console

NO_CLASS = "(no class)"


def print_summary(report: Report, console: Console) -> None:
    """Print the table, where there is anything to count, and the totals."""
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    if report.findings:
        codes, rows = summary_rows(report)
        table = Table(box=SIMPLE, pad_edge=False)
        table.add_column("class", overflow="fold")
        for code in codes:
            table.add_column(code, justify="right", no_wrap=True)
        for name, counts in rows:
            table.add_row(Text(name), *(str(count) if count else "" for count in counts))
        console.print(table)
    console.print(Text(totals(report)), soft_wrap=True)


def summary_rows(report: Report) -> tuple[list[str], list[tuple[str, list[int]]]]:
    """Return the codes that have findings, and a row of counts for each class."""
    codes = list(report.counts_by_code())
    counts = Counter((finding.cls or "", finding.code) for finding in report.findings)
    classes = sorted({finding.cls or "" for finding in report.findings}, key=lambda cls: (not cls, cls))
    names = _short_names([cls for cls in classes if cls])
    return codes, [(names.get(cls, NO_CLASS), [counts[cls, code] for code in codes]) for cls in classes]


def totals(report: Report) -> str:
    """Return the line of totals."""
    counted = [
        _plural(report.count(Severity.ERROR), "error"),
        _plural(report.count(Severity.WARNING), "warning"),
        _plural(report.count(Severity.INFO), "note"),
    ]
    name = f"vLLM {report.release}" if report.release else "a vLLM tree of unknown release"
    line = f"{', '.join(counted)} in {_plural(report.files, 'file')} of {name} ({report.tree})"
    if report.allowed or report.baselined:
        line += f"; {report.allowed} allowed in the source, {report.baselined} in the baseline"
    return f"{line}; from cache" if report.from_cache else line


def _short_names(classes: list[str]) -> dict[str, str]:
    """Return the last part of each name, and the whole name where that is not enough."""
    last = Counter(cls.rpartition(".")[2] for cls in classes)
    return {cls: short if last[short := cls.rpartition(".")[2]] == 1 else cls for cls in classes}


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
