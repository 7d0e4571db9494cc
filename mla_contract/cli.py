"""The command line. Start-up imports typer alone; each command imports what it needs when it runs."""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated

import typer

from mla_contract import checks_cli, smoke_cli
from mla_contract.audit import cli as audit_cli

app = typer.Typer(
    name="mla-contract",
    help="What attention metadata an MLA backend owes vLLM's shared layer, and who does not deliver it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(audit_cli.audit)
app.command()(checks_cli.check)
app.command()(smoke_cli.smoke)
app.command()(audit_cli.explain)
app.command()(audit_cli.profile)
app.command()(audit_cli.diff)


def _print_version(wanted: bool) -> None:
    if wanted:
        from mla_contract import __version__

        typer.echo(f"mla-contract {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Check attention metadata of MLA backends."""


@app.command()
def seam(
    classes: Annotated[list[str], typer.Argument(metavar="MODULE:CLASS...", help="Metadata classes to check.")],
    tier: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Part of the contract to check against; repeatable. Default: counts."),
    ] = None,
    output: audit_cli.OutputOption = None,
) -> None:
    """Write a file that makes mypy check metadata classes against the contract."""
    with audit_cli.reported_errors():
        from mla_contract.audit.source import AuditError
        from mla_contract.contract.seam import write_seam

        try:
            text = write_seam(classes, tuple(tier or ("counts",)))
        except ValueError as error:
            raise AuditError(str(error), "name classes as package.module:Class and a tier of the contract") from error
        audit_cli.write_result(text, output)


@app.command()
def doctor() -> None:
    """Say what is installed, what the validator would wrap, and which kernel providers can run here.

    Exit codes: 0 the validator can work here, or there is no vLLM; 2 something keeps it from working.
    """
    with audit_cli.reported_errors():
        from mla_contract.doctor import diagnose, render

        found = diagnose()
        audit_cli.write_result(render(found), None)
        raise typer.Exit(audit_cli.EXIT_FAILED if found.faults else 0)


def main() -> None:
    """Run the command line, and end the process without taking apart what it holds."""
    # An audit leaves millions of syntax nodes: neither collecting nor freeing them one by one serves anybody.
    gc.disable()
    code: object = 0
    try:
        app()
    except KeyboardInterrupt:
        code = audit_cli.EXIT_INTERRUPTED
    except SystemExit as stop:
        code = stop.code
    if isinstance(code, str):
        sys.exit(code)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(audit_cli.EXIT_FAILED)
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
