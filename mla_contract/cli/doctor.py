"""The command ``doctor``: what is installed, and what can work here."""

from __future__ import annotations

import typer

from mla_contract.cli.shared import EXIT_FAILED, reported_errors, write_result


def doctor() -> None:
    """Say what is installed, what the validator would wrap, and which kernel providers can run here.

    Exit codes: 0 the validator can work here, or there is no vLLM; 2 something keeps it from working.
    """
    with reported_errors():
        from mla_contract.plugin.diagnosis import diagnose, render

        found = diagnose()
        write_result(render(found), None)
        raise typer.Exit(EXIT_FAILED if found.faults else 0)
