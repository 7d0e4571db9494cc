"""The command ``diff``: what changed between two releases."""

from __future__ import annotations

from typing import Annotated

import typer

from mla_contract.cli.profile import profile_named
from mla_contract.cli.shared import OutputOption, reported_errors, write_result


def diff(
    old: Annotated[str, typer.Argument(help="Shipped profile (0.27), release (0.27.1), profile (.json) or tree.")],
    new: Annotated[str, typer.Argument(help="The same, to compare with it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    output: OutputOption = None,
) -> None:
    """Print what changed for MLA backends between two releases, profiles or trees; exit 1 where it can break one."""
    with reported_errors():
        import json

        before, after = profile_named(old), profile_named(new)
        from mla_contract.audit.diff import diff_profiles

        changes = diff_profiles(before, after)
        lines = "".join(f"{change}\n" for change in changes)
        document = json.dumps([change.as_json() for change in changes], indent=2) + "\n"
        write_result(document if as_json else lines, output)
        raise typer.Exit(1 if any(change.breaking for change in changes) else 0)
