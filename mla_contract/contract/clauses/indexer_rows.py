"""The indexer's record: rows and row lengths that no other count of it binds."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause, lacks
from mla_contract.contract.clauses.host import host_ints
from mla_contract.contract.clauses.subject import Ints, Subject


@clause(
    "MLA351",
    "The indexer's sequence lengths have a row for each decode and each prefill.",
    invariant="I1",
    incident="vllm#35690 vllm#39542",
    example="ND=2, NP=3, seq_lens of 4",
    help="take the lengths of this batch, sliced by its requests",
)
def check_indexer_seq_rows(subject: Subject) -> Found:
    """Check the rows of ``seq_lens``."""
    decodes, prefills = subject.num_decodes, subject.num_prefills
    if not subject.is_indexer or decodes is None or prefills is None:
        return lacks("indexer metadata")
    rows = subject.metadata.seq_lens.shape[0]
    if rows == decodes + prefills:
        return FINE
    axes = {"num_decodes": decodes, "num_prefills": prefills}
    path = f"{subject.name}.seq_lens"
    return (Breach(path, "rows are not the requests", str(decodes + prefills), str(rows), axes),)


@clause(
    "MLA352",
    "The indexer's global decode lengths have the rows of its local ones.",
    invariant="D7",
    incident="vllm#36723",
    example="dcp 2, decode.seq_lens of 3 rows, global_seq_lens of 2",
    help="slice both by the same count",
)
def check_global_rows(subject: Subject) -> Found:
    """Check the rows of ``global_seq_lens``."""
    stated = getattr(subject.decode, "global_seq_lens", None)
    if not subject.is_indexer or stated is None:
        return lacks("indexer metadata.decode.global_seq_lens")
    wanted, got = subject.decode.seq_lens.shape[0], stated.shape[0]
    if got == wanted:
        return FINE
    path = f"{subject.name}.decode.global_seq_lens"
    return (Breach(path, "rows differ from the local lengths'", str(wanted), str(got)),)


def _readings(subject: Subject, rows: int) -> tuple[Ints, ...]:
    """Return what the decode lengths may be: the requests' query lengths, or ones on live tokens."""
    decodes, tokens = subject.num_decodes, subject.num_decode_tokens
    if decodes is None or tokens is None:
        return ()
    queries = subject.device_query_lens[:decodes]
    live = min(int(queries.sum()), rows)
    found = [queries] if rows == len(queries) else []
    return (*found, np.ones(live, np.int64)) if rows == tokens else tuple(found)


@clause(
    "MLA353",
    "The lengths of the indexer's decode rows are the queries' lengths, or 1 on live rows where a row is a token.",
    tier="values",
    invariant="D4",
    incident="vllm#39277 vllm#39542",
    example="q=[2,2], decode_lens=[2,1]",
    help="take lengths from offsets of this step",
)
def check_decode_lens(subject: Subject) -> Found:
    """Check ``decode_lens`` by request or by token; the tail behind live tokens is MLA347's."""
    if not subject.is_indexer or subject.decode is None or subject.batch is None:
        return lacks("indexer metadata.decode and batch")
    got = host_ints(subject.decode.decode_lens)
    readings = _readings(subject, len(got))
    if not readings:
        return lacks("rows that are decodes or decode tokens")
    if any(np.array_equal(got[: len(wanted)], wanted) for wanted in readings):
        return FINE
    wanted = readings[0]
    row = int(np.argmax(got[: len(wanted)] != wanted))
    path = f"{subject.name}.decode.decode_lens"
    axes = {"num_decodes": subject.num_decodes or 0, "num_decode_tokens": subject.num_decode_tokens or 0}
    return (Breach(path, "not the query tokens of the row", f"{wanted[row]} at row {row}", str(got[row]), axes),)
