"""What several commands share: their arguments, exit codes, and how errors and results reach the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from mla_contract.audit.run import AuditOptions

EXIT_FAILED = 2
EXIT_INTERRUPTED = 130
LOG_WIDTH = 160
"""Columns of tables where no terminal tells its width."""

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


@contextmanager
def reported_errors() -> Iterator[None]:
    """Turn whatever goes wrong in a command into a message and an exit code."""
    from mla_contract.audit.source import AuditError

    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except AuditError as error:
        fail(str(error), EXIT_FAILED, error)
    except KeyboardInterrupt as error:
        fail("interrupted", EXIT_INTERRUPTED, error)
    except BrokenPipeError:
        # Nobody reads on; the interpreter must not try to flush into the closed pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_FAILED) from None
    except Exception as error:  # noqa: BLE001  the last resort: people get a sentence, not a traceback
        fail(
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


def fail(message: str, code: int, cause: BaseException) -> NoReturn:
    """End the command with a message and an exit code."""
    first, _, rest = message.partition("\n")
    typer.echo(f"mla-contract: {first}" + (f"\n{rest}" if rest else ""), err=True)
    raise typer.Exit(code) from cause


@contextmanager
def download_progress(options: AuditOptions) -> Iterator[Callable[[int, float], None] | None]:
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


def result_console() -> Console:
    """Return the console of standard output: as wide as the terminal, or wide enough for a table in a log."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)


def end_with_traceback(error: Exception) -> NoReturn:
    """End the command because a user's own code raised: the way to their line is printed, nothing was checked."""
    typer.echo(authors_traceback(error), err=True)
    raise typer.Exit(EXIT_FAILED) from error


def authors_traceback(error: BaseException) -> str:
    """Return the traceback of an error from the first line that is not this package's."""
    from pathlib import Path
    from traceback import format_exception

    import mla_contract

    own = str(Path(str(mla_contract.__file__)).parent)
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None and entry.tb_frame.f_code.co_filename.startswith(own):
        entry = entry.tb_next
    return "".join(format_exception(type(error), error, entry))
