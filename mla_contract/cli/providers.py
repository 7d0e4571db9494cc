"""What ``check --provider`` prints: operations by verdicts, each reason once, and every fault."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mla_contract.cli.shared import authors_traceback, end_with_traceback, result_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mla_contract.testing.provider_suite import CaseVerdict

SHOWN = 3
"""Faults of an operation, and reasons against it, that are shown without ``--verbose``."""


def certify_providers(names: Sequence[str], device: str, *, verbose: bool) -> bool:
    """Print what the suite says of each provider, and return whether none is wrong.

    Raises:
        AuditError: A provider cannot be had.
        Exit: Its factory raises; the traceback has been printed.
    """
    from rich.console import Console

    from mla_contract.audit.source import AuditError
    from mla_contract.errors import InvalidContract
    from mla_contract.testing.providers import judges, provider_named

    sys.path.insert(0, "")
    console = result_console()
    status = Console(stderr=True)
    clean = True
    for name in names:
        try:
            provider = provider_named(name)
        except InvalidContract as error:
            help = "name a registered provider, or a callable without arguments as module:factory"
            raise AuditError(str(error), help) from error
        except Exception as error:  # noqa: BLE001 - the factory is its author's: their line is shown
            end_with_traceback(error)
        verdicts: list[CaseVerdict] = []
        with status.status(f"certifying {name}") as line:
            for case, judge in judges():
                line.update(f"certifying {name}: {case}")
                verdicts += judge(provider, device)
        console.print(_table(name, verdicts))
        _print_details(verdicts, console, most=None if verbose else SHOWN)
        clean = clean and not any(verdict.faults for verdict in verdicts)
    return clean


def _table(name: str, verdicts: Sequence[CaseVerdict]) -> Table:
    """Return the table of a provider: operations by verdicts."""
    from rich.table import Table

    table = Table(title=f"{name} against the reference, cases", title_justify="left")
    for column in ("operation", "certified", "refused", "wrong"):
        table.add_column(column)
    for operation in dict.fromkeys(verdict.operation for verdict in verdicts):
        own = [verdict for verdict in verdicts if verdict.operation == operation]
        wrong = sum(bool(verdict.faults) for verdict in own)
        refused = sum(verdict.refused is not None and not verdict.faults for verdict in own)
        text = f"[red]! {wrong}[/red]" if wrong else "0"
        table.add_row(operation, str(len(own) - wrong - refused), str(refused), text)
    return table


def _print_details(verdicts: Sequence[CaseVerdict], console: Console, *, most: int | None) -> None:
    """Print reasons with their number, and faults with their case."""
    for operation in dict.fromkeys(verdict.operation for verdict in verdicts):
        own = [verdict for verdict in verdicts if verdict.operation == operation]
        reasons = Counter(verdict.refused for verdict in own if verdict.refused and not verdict.faults)
        for reason, number in reasons.most_common(most):
            console.print(f"{operation}  {number} refused: {reason}", markup=False)
        for verdict in [verdict for verdict in own if verdict.faults][:most]:
            console.print(f"\n{operation}, {verdict.case}", markup=False, style="red")
            for fault in verdict.faults:
                console.print(fault.render(), markup=False)
            if verdict.error is not None:
                console.print(authors_traceback(verdict.error).rstrip(), markup=False, soft_wrap=True)
