"""The command line. Start-up imports typer alone; each command imports what it needs when it runs."""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated

import typer

from mla_contract.cli.audit import audit
from mla_contract.cli.check import check
from mla_contract.cli.diff import diff
from mla_contract.cli.doctor import doctor
from mla_contract.cli.explain import explain
from mla_contract.cli.profile import profile
from mla_contract.cli.seam import seam
from mla_contract.cli.shared import EXIT_FAILED, EXIT_INTERRUPTED
from mla_contract.cli.smoke import smoke

app = typer.Typer(
    name="mla-contract",
    help="What attention metadata an MLA backend owes vLLM's shared layer, and who does not deliver it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (audit, check, smoke, explain, profile, diff, seam, doctor):
    app.command()(command)


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


def main() -> None:
    """Run the command line, and end the process without taking apart what it holds."""
    # An audit leaves millions of syntax nodes: neither collecting nor freeing them one by one serves anybody.
    gc.disable()
    code: object = 0
    try:
        app()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except SystemExit as stop:
        code = stop.code
    if isinstance(code, str):
        sys.exit(code)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(EXIT_FAILED)
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
