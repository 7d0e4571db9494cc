"""The command ``check``: the conformance suite on builders, as one table. Whatever is not needed is imported late."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mla_contract.cli.shared import reported_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from mla_contract.testing.scoreboard import Card
    from mla_contract.testing.targets import NamedTarget

EXIT_VIOLATED, EXIT_NOT_CHECKED = 1, 2


def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|MODULE:FACTORY...]",
            help="Builders to check: registered backends, see doctor, or factories; all registered ones without.",
            show_default=False,
        ),
    ] = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Check the reference builders as well; they stand for themselves.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say why clauses and batches were skipped.")] = False,
) -> None:
    """Run the conformance suite on builders: every batch of the corpus, every clause.

    Exit codes: 0 every decided clause holds, 1 one is violated, 2 a builder cannot be checked.
    """
    with reported_errors():
        from rich.console import Console

        from mla_contract.plugin.diagnosis import provider_lines, provider_reasons
        from mla_contract.testing.scoreboard import score_targets

        console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
        status = Console(stderr=True)
        with status.status("checking") as line:
            cards = score_targets(_chosen(targets or [], reference), lambda name: line.update(f"checking {name}"))
        console.print(_table(cards))
        _print_details(cards, console, verbose=verbose)
        console.print("\n".join(provider_lines(provider_reasons())), markup=False)
        if any(card.reason for card in cards):
            raise typer.Exit(EXIT_NOT_CHECKED)
        raise typer.Exit(0 if all(card.is_clean for card in cards) else EXIT_VIOLATED)


def _chosen(names: Sequence[str], reference: bool) -> list[NamedTarget]:
    """Return the targets to check: those named, else those registered; without any, the reference ones."""
    from mla_contract.audit.source import AuditError
    from mla_contract.errors import InvalidContract
    from mla_contract.testing.targets import NamedTarget, load_factory, reference_targets, registered_targets

    sys.path.insert(0, "")
    try:
        found = [NamedTarget(name, load_factory(name)) for name in names] or list(registered_targets())
    except InvalidContract as error:
        help = "name a registered backend, or a callable without arguments as module:factory"
        raise AuditError(str(error), help) from error
    if reference or not found:
        found += [NamedTarget(name, factory) for name, factory in reference_targets().items()]
    return found


def _table(cards: Sequence[Card]) -> Table:
    """Return the table: clause families by targets."""
    from rich.table import Table
    from rich.text import Text

    from mla_contract.testing.scoreboard import Cell

    table = Table(title="clauses held, violated (!), skipped (-) on the corpus", title_justify="left")
    table.add_column("clauses")
    for card in cards:
        table.add_column(card.name)

    def text(cell: Cell) -> Text:
        if cell.violated:
            return Text(f"! {' '.join(sorted(cell.violated))}", style="red")
        skipped = f", {len(cell.skipped)} -" if cell.skipped else ""
        return Text(
            f"{len(cell.held)}{skipped}" if cell.held else f"-{len(cell.skipped) or ''}",
            style="green" if cell.held else "dim",
        )

    for family in cards[0].cells if cards else ():
        table.add_row(family, *(text(card.cells[family]) for card in cards))
    table.add_section()
    table.add_row("batches", *(card.reason and "not checked" or f"{card.batches}" for card in cards))
    return table


def _print_details(cards: Sequence[Card], console: Console, *, verbose: bool) -> None:
    """Print the first violation of each code, what could not be checked, and on demand what was skipped."""
    for card in cards:
        if card.reason:
            console.print(f"{card.name}: {card.reason}", markup=False)
        for code, (batch, violation) in sorted(card.examples.items()):
            count = sum(len(cell.violated.get(code, ())) for cell in card.cells.values())
            console.print(f"\n{card.name}, batch {batch} ({count} in all)\n{violation.render()}", markup=False)
        if verbose:
            for family, cell in card.cells.items():
                for code, reason in sorted(cell.skipped.items()):
                    console.print(f"{card.name}  {family}  {code} skipped: needs {reason}", markup=False)
            for batch, reason in card.skipped_batches.items():
                console.print(f"{card.name}  batch {batch} skipped: {reason}", markup=False)
