"""The command ``audit``. Whatever is not needed for ``--help`` is imported late."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mla_contract.cli.shared import (
    LOG_WIDTH,
    InstalledOption,
    OutputOption,
    PathArgument,
    ReleaseOption,
    download_progress,
    reported_errors,
    write_result,
)

if TYPE_CHECKING:
    from mla_contract.audit.output.report import Report
    from mla_contract.audit.run import AuditOptions


class OutputFormat(StrEnum):
    """The formats of ``--format``."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def audit(
    path: PathArgument = None,
    release: ReleaseOption = None,
    installed: InstalledOption = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", help="Out-of-tree package to audit with the tree; repeatable.", show_default=False
        ),
    ] = None,
    aiter: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="aiter to bind calls against: checkout or package.", show_default=False),
    ] = None,
    format: Annotated[OutputFormat, typer.Option("--format", help="Format of the report.")] = OutputFormat.TEXT,
    output: OutputOption = None,
    select: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="Report these: code, its beginning, name or group.", show_default=False),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Report all but these.", show_default=False)
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Findings to live with; the file may only shrink.", show_default=False),
    ] = None,
    write_baseline: Annotated[
        bool, typer.Option("--write-baseline", help="Write the baseline file, unless it would grow.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say all that is known of each finding (text).")
    ] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither use nor keep results.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that check the syntax.")] = 2,
) -> None:
    """Audit the source of a vLLM tree; nothing in it is imported or run.

    Exit codes: 0 clean, 1 an error or a warning is reported, 2 the tool could not do its work.
    """
    with reported_errors():
        from mla_contract.audit.output import Format, render
        from mla_contract.audit.run import AuditOptions, catalogue

        options = AuditOptions(
            path=path,
            release=release,
            installed=installed,
            plugins=tuple(plugin or ()),
            aiter=aiter,
            select=tuple(select or ()),
            ignore=tuple(ignore or ()),
            baseline=baseline,
            write_baseline=write_baseline,
            use_cache=not no_cache,
            jobs=jobs,
        )
        report = _run_with_progress(options)
        write_result(render(report, catalogue().rules, Format(format.value), verbose=verbose), output)
        if format is OutputFormat.TEXT:
            from rich.console import Console

            from mla_contract.audit.output.table import print_summary

            width = None if sys.stderr.isatty() else LOG_WIDTH
            print_summary(report, Console(stderr=True, highlight=False, width=width))
        raise typer.Exit(report.exit_code)


def _run_with_progress(options: AuditOptions) -> Report:
    from mla_contract.audit.run import run_audit

    with download_progress(options) as progress:
        return run_audit(options, progress=progress)
