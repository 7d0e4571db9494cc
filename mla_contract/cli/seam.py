"""The command ``seam``: a file that makes mypy check classes that cannot be edited."""

from __future__ import annotations

from typing import Annotated

import typer

from mla_contract.cli.shared import OutputOption, reported_errors, write_result


def seam(
    classes: Annotated[list[str], typer.Argument(metavar="MODULE:CLASS...", help="Metadata classes to check.")],
    tier: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Part of the contract to check against; repeatable. Default: counts."),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Write a file that makes mypy check metadata classes against the contract."""
    with reported_errors():
        from mla_contract.audit.source import AuditError
        from mla_contract.contract.seam import write_seam

        try:
            text = write_seam(classes, tuple(tier or ("counts",)))
        except ValueError as error:
            raise AuditError(str(error), "name classes as package.module:Class and a tier of the contract") from error
        write_result(text, output)
