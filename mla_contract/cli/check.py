"""The command ``check``: the conformance suite on builders, as one table. Whatever is not needed is imported late."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mla_contract.cli.shared import EXIT_FAILED, authors_traceback, end_with_traceback, reported_errors, result_console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import Console
    from rich.table import Table

    from mla_contract.testing.scoreboard import Card
    from mla_contract.testing.targets import NamedTarget

EXIT_VIOLATED = 1


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
    provider: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|MODULE:FACTORY",
            help="Certify a kernel provider against the reference; repeatable. Builders are checked if named, too.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where the kernels of --provider run.")] = "cpu",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say why clauses and batches were skipped.")] = False,
) -> None:
    """Run the conformance suite on builders: every batch of the corpus, every clause.

    Exit codes: 0 every decided clause holds, 1 one is violated, 2 a builder cannot be checked.
    """
    with reported_errors():
        from rich.console import Console

        from mla_contract.cli.providers import certify_providers
        from mla_contract.plugin.diagnosis import provider_lines, provider_reasons

        clean = not provider or certify_providers(provider, device, verbose=verbose)
        if provider and not targets and not reference:
            raise typer.Exit(0 if clean else EXIT_VIOLATED)
        console = result_console()
        status = Console(stderr=True)
        with status.status("checking") as line:
            cards = _scored(_chosen(targets or [], reference), lambda name: line.update(f"checking {name}"))
        console.print(_table(cards))
        _print_details(cards, console, verbose=verbose)
        console.print("\n".join(provider_lines(provider_reasons())), markup=False)
        if any(card.reason for card in cards):
            raise typer.Exit(EXIT_FAILED)
        raise typer.Exit(0 if clean and all(card.is_clean for card in cards) else EXIT_VIOLATED)


def _chosen(names: Sequence[str], reference: bool) -> list[NamedTarget]:
    """Return the targets to check: those named, else those registered; without any, the reference ones."""
    from mla_contract.audit.source import AuditError
    from mla_contract.errors import InvalidContract
    from mla_contract.testing.targets import NamedTarget, load_targets, reference_targets, registered_targets

    sys.path.insert(0, "")
    try:
        found = [target for name in names for target in load_targets(name)] or list(registered_targets())
    except InvalidContract as error:
        help = "name a registered backend, or a callable without arguments as module:factory"
        raise AuditError(str(error), help) from error
    if reference or not found:
        found += [NamedTarget(name, factory) for name, factory in reference_targets().items()]
    return found


def _scored(targets: Sequence[NamedTarget], progress: Callable[[str], None]) -> tuple[Card, ...]:
    """Return what the suite says of each target; a factory that makes none is its author's error.

    Raises:
        Exit: A factory or a property of a target raises; its traceback has been printed.
    """
    from mla_contract.adapters.fault import InvalidConfig
    from mla_contract.audit.source import AuditError
    from mla_contract.testing.scoreboard import score_targets

    try:
        return score_targets(targets, progress)
    except InvalidConfig as error:
        raise AuditError(str(error), "a factory returns a target: declaration, facts, expectations, build") from error
    except Exception as error:  # noqa: BLE001 - the factory is its author's: their line is shown
        end_with_traceback(error)


def _table(cards: Sequence[Card]) -> Table:
    """Return the table: clause families by targets."""
    from rich.table import Table
    from rich.text import Text

    from mla_contract.contract.clauses.registry import families
    from mla_contract.testing.scoreboard import STRUCTURE

    title = "clauses decided of all; on N to M builds; violated (!)"
    table = Table(title=title, title_justify="left")
    table.add_column("clauses")
    for card in cards:
        table.add_column(card.name)

    def red(codes: Iterable[str]) -> Text:
        return Text(f"! {' '.join(sorted(codes))}", style="red")

    def structure(card: Card) -> Text:
        return red(card.structural) if card.structural else Text(f"{card.structure} records", style="green")

    def cell(card: Card, family: str) -> Text:
        counts = card.of_family(family)
        broken = [code for code, count in counts.items() if count.violated]
        if broken:
            return red(broken)
        decided = [count.decided for count in counts.values() if count.decided]
        if not decided:
            return Text(f"0 of {len(counts)}", style="dim")
        span = f"{min(decided)} to {max(decided)}" if min(decided) < max(decided) else f"{decided[0]}"
        return Text(f"{len(decided)} of {len(counts)}; on {span}", style="green")

    table.add_row(STRUCTURE, *("" if card.reason else structure(card) for card in cards))
    for family in families() if cards else ():
        table.add_row(family, *(Text("") if card.reason else cell(card, family) for card in cards))
    table.add_section()
    table.add_row("clauses", *(card.reason and "-" or f"{len(card.decided)} of {len(card.counts)}" for card in cards))
    table.add_row("builds", *(card.reason and "not checked" or f"{card.builds}" for card in cards))
    table.add_row("batches", *(card.reason and "not checked" or f"{card.batches}" for card in cards))
    return table


def _print_details(cards: Sequence[Card], console: Console, *, verbose: bool) -> None:
    """Print the first violation of each code, what builders raise, and on demand every clause."""
    for card in cards:
        if card.reason:
            console.print(f"{card.name}: {card.reason}", markup=False)
        for code, (batch, violation) in sorted(card.examples.items()):
            batches = card.counts[code].violated if code in card.counts else card.structural[code]
            console.print(f"\n{card.name}, batch {batch} ({len(set(batches))} in all)", markup=False)
            console.print(violation.render(), markup=False)
        for batch, error in card.errors.values():
            console.print(f"\n{card.name}, batch {batch}: the builder raises", markup=False)
            console.print(authors_traceback(error).rstrip(), markup=False, soft_wrap=True)
        if verbose and not card.reason:
            _print_clauses(card, console)


def _print_clauses(card: Card, console: Console) -> None:
    """Print on how many builds each clause was decided, and why not on the others."""
    for code, count in card.counts.items():
        reasons = sorted(count.undecided.items(), key=lambda one: -one[1])
        word = "violated" if count.violated else "held" if count.held else "undecided"
        text = f"{card.name}  {code} {word}, decided on {count.decided} of {card.builds}"
        why = "; ".join(f"{number} lack {reason}" for reason, number in reasons[:2])
        console.print(f"{text}  {why}".rstrip(), markup=False)
    for batch, reason in card.skipped_batches.items():
        console.print(f"{card.name}  batch {batch} skipped: {reason}", markup=False)
