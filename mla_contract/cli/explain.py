"""The command ``explain``: the page of a rule or a clause."""

from __future__ import annotations

from typing import Annotated

import typer

from mla_contract.cli.shared import reported_errors, write_result


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
    """Return the page of a clause such as MLA203, or None where no clause has the code."""
    if not code.upper().startswith("MLA"):
        return None
    from mla_contract.contract.docs import page_of as explain_clause

    return explain_clause(code.upper())
