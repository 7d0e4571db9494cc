"""The commands about source: audit, explain, profile, diff. Whatever is not needed for ``--help`` is imported late."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from mla_contract.audit.output.report import Report
    from mla_contract.audit.run import AuditOptions

EXIT_FAILED = 2
EXIT_INTERRUPTED = 130

_LOG_WIDTH = 160


class OutputFormat(StrEnum):
    """The formats of ``--format``."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


PathArgument = Annotated[
    Path | None,
    typer.Argument(metavar="[PATH]", help="Checkout, unpacked tree, wheel, or the vllm package.", show_default=False),
]
ReleaseOption = Annotated[
    str | None,
    typer.Option("--release", metavar="X.Y.Z", help="Audit a release, fetched through pip.", show_default=False),
]
InstalledOption = Annotated[
    bool, typer.Option("--installed", help="Audit the vLLM of this environment, without importing it.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file.", show_default=False)
]


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
    """Audit the source of a vLLM tree; nothing in it is imported.

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

            width = None if sys.stderr.isatty() else _LOG_WIDTH
            print_summary(report, Console(stderr=True, highlight=False, width=width))
        raise typer.Exit(report.exit_code)


def explain(
    rule: Annotated[
        str | None, typer.Argument(help="Code or name of a rule, or code of a clause; all rules are listed without.")
    ] = None,
) -> None:
    """Print the page of a rule or a clause: what it reports, why, the incident, and an example."""
    with reported_errors():
        from rich.console import Console
        from rich.markdown import Markdown

        from mla_contract.audit.docs import rule_page
        from mla_contract.audit.run import catalogue
        from mla_contract.audit.source import AuditError

        everything = catalogue()
        if rule is None:
            lines = [f"{each.code}  {each.name}  ({each.group}, {each.severity.value})" for each in everything.rules]
            write_result("\n".join(lines) + "\n", None)
            return
        page = _clause_page(rule)
        if page is not None:
            Console(highlight=False).print(Markdown(page.partition("-->")[2]))
            return
        found = everything.rule_of(rule)
        if found is None:
            help_ = f"{everything.suggestion(rule)}mla-contract explain lists them"
            raise AuditError(f"{rule}: no rule of this code or name", help_)
        Console(highlight=False).print(Markdown(rule_page(found).partition("-->")[2]))


def _clause_page(code: str) -> str | None:
    """Return the page of a clause such as MLA203, or None where the code is no clause's."""
    if not code.upper().startswith("MLA"):
        return None
    from mla_contract.contract.clauses import explain as explain_clause

    return explain_clause(code.upper())


def profile(
    path: PathArgument = None,
    release: ReleaseOption = None,
    installed: InstalledOption = False,
    output: OutputOption = None,
) -> None:
    """Extract what the shared layer of a tree reads, and what its backends declare, as JSON."""
    with reported_errors():
        from mla_contract.audit.profile import render_profile
        from mla_contract.audit.run import AuditOptions

        document = _profile_of(AuditOptions(path=path, release=release, installed=installed))
        write_result(render_profile(document), output)


def diff(
    old: Annotated[str, typer.Argument(help="Shipped profile (0.27), release (0.27.1), profile (.json) or tree.")],
    new: Annotated[str, typer.Argument(help="The same, to compare with it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    output: OutputOption = None,
) -> None:
    """Print what changed for MLA backends between two releases, profiles or trees; exit 1 where it can break one."""
    with reported_errors():
        import json

        before, after = _profile_named(old), _profile_named(new)
        from mla_contract.audit.diff import diff_profiles

        changes = diff_profiles(before, after)
        lines = "".join(f"{change}\n" for change in changes)
        document = json.dumps([change.as_json() for change in changes], indent=2) + "\n"
        write_result(document if as_json else lines, output)
        raise typer.Exit(1 if any(change.breaking for change in changes) else 0)


@contextmanager
def reported_errors() -> Iterator[None]:
    """Turn whatever goes wrong in a command into a message and an exit code."""
    from mla_contract.audit.source import AuditError

    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except AuditError as error:
        _fail(str(error), EXIT_FAILED, error)
    except KeyboardInterrupt as error:
        _fail("interrupted", EXIT_INTERRUPTED, error)
    except BrokenPipeError:
        # Nobody reads on; the interpreter must not try to flush into the closed pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_FAILED) from None
    except Exception as error:  # noqa: BLE001  the last resort: people get a sentence, not a traceback
        _fail(
            f"{type(error).__name__}: {error}\n  help      this is a fault of mla-contract: report it",
            EXIT_FAILED,
            error,
        )


def write_result(text: str, output: Path | None) -> None:
    """Write a result to a file, or to standard output where no file is named.

    Raises:
        AuditError: The file cannot be written.
    """
    from mla_contract.audit.source import AuditError

    if output is None:
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
        return
    try:
        output.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise AuditError(f"--output {output}: cannot be written: {error.strerror}", "name another file") from error


def _fail(message: str, code: int, cause: BaseException) -> NoReturn:
    first, _, rest = message.partition("\n")
    typer.echo(f"mla-contract: {first}" + (f"\n{rest}" if rest else ""), err=True)
    raise typer.Exit(code) from cause


def _run_with_progress(options: AuditOptions) -> Report:
    from mla_contract.audit.run import run_audit

    with _download_progress(options) as progress:
        return run_audit(options, progress=progress)


@contextmanager
def _download_progress(options: AuditOptions) -> Iterator[Callable[[int, float], None] | None]:
    """Show how a download goes, where there is one and someone looks."""
    if options.release is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"vLLM {options.release}", total=None, visible=False)
        yield lambda size, _: bar.update(task, completed=size, visible=True)


def _profile_of(options: AuditOptions) -> dict[str, Any]:
    from mla_contract.audit.profile import profile_tree
    from mla_contract.audit.run import load_opener, open_source
    from mla_contract.audit.source.acquire import release_of

    with _download_progress(options) as progress:
        tree = open_source(options, progress=progress)
    project = load_opener()(tree, release=release_of(tree) or options.release, aiter=None)
    document: dict[str, Any] = profile_tree(project)
    return document


def _profile_named(name: str) -> dict[str, Any]:
    """Return a shipped profile, the profile in a file, or that of a release or a tree."""
    import json

    from mla_contract.audit.profile import SCHEMA
    from mla_contract.audit.run import AuditOptions
    from mla_contract.audit.source import AuditError

    path = Path(name)
    if not path.exists() and name[:1].isdigit():
        shipped = Path(__file__).parents[1] / "contract" / "profiles" / f"vllm-{name}.json"
        if name.count(".") != 1 or not shipped.is_file():
            return _profile_of(AuditOptions(release=name))
        path = shipped
    elif path.suffix != ".json":
        return _profile_of(AuditOptions(path=path))
    help_ = "write one with mla-contract profile TREE --output FILE"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AuditError(f"{path}: no profile: {error}", help_) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise AuditError(f"{path}: no profile", help_, expected=f"a JSON object with schema {SCHEMA}")
    return document
