"""The clauses: what must hold between the facts of one batch, one file for each object.

``registry()`` loads every clause; ``explain(code)`` returns the page of a clause or of a structural fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mla_contract.contract.clauses.clause import Clause


def registry() -> tuple[Clause, ...]:
    """Return every clause, in the order of its id."""
    from mla_contract.contract.clauses.judge import all_clauses

    return all_clauses()


def explain(code: str) -> str | None:
    """Return the Markdown page of a code, or None if the contract has no such code."""
    from mla_contract.contract.docs import page_of

    return page_of(code)
