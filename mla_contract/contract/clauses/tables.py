"""Block tables that repeat another one: the same blocks where rows reach, nothing foreign where they do not."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found
from mla_contract.contract.clauses.owners import equal
from mla_contract.contract.step.context import Ints, largest


def compare_tables(path: str, own: Ints, wanted: Ints, lens: Ints, span: int) -> Found:
    """Return the breach of a table by its source.

    Live columns hold the source's blocks, and there are as many as the longest row reaches. A row without tokens is its
    source's, or begins with the null block, which a kernel reads that clamps an empty row to one token. All other
    columns are undefined: builders that expand rows for drafts leave those of the step before there.

    Args:
        path: How reports name the table.
        own: The table, ``[rows, columns]``.
        wanted: Its source, with the same rows and as many columns as an engine gives it.
        lens: Tokens of each row.
        span: Tokens of a column, over all ranks.
    """
    columns = -(-lens // span)
    reach = largest(columns)
    if own.shape[1] < min(reach, wanted.shape[1]):
        got = f"{own.shape[1]} columns of {span} tokens"
        return (Breach(path, "the table is narrower than its rows reach", f"at least {reach} columns", got),)
    width = min(own.shape[1], wanted.shape[1])
    own, wanted = own[:, :width], wanted[:, :width]
    if equal(own, wanted):
        return FINE
    differs = own != wanted
    wrong = differs & (np.arange(width) < columns[:, None])
    if wrong.any():
        row, column = (int(index[0]) for index in np.nonzero(wrong))
        got = f"{own[row, column]} at row {row}, column {column}"
        return (Breach(path, "a row belongs to another request", str(wanted[row, column]), got),)
    stale = np.flatnonzero((differs & (own > 0))[:, :1].any(axis=1) & (lens <= 0))
    if not len(stale):
        return FINE
    row = int(stale[0])
    got = f"{own[row, 0]} at row {row}"
    return (Breach(path, "a padding row begins with a block in use", "the null block, 0 or -1", got),)
