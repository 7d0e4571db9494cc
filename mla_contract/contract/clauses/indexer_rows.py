"""The indexer's record: rows and row lengths that no other count of it binds."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import BATCH, COUNTS, GLOBAL_LENS, INDEXER, INDEXER_DECODE, Need
from mla_contract.contract.step.context import Ints, StepContext
from mla_contract.contract.step.host import host_ints

DECODE_ROWS = Need(
    "rows that are decodes or decode tokens",
    lambda step: (
        hasattr(step.decode, "decode_lens")
        and step.decode.decode_lens.shape[0] in (step.num_decodes, step.num_decode_tokens)
    ),
    of=INDEXER_DECODE,
)


@clause(
    "MLA351",
    "The indexer's sequence lengths have a row for each decode and each prefill.",
    needs=(INDEXER, COUNTS),
    incident="vllm#35690 vllm#39542",
    example="ND=2, NP=3, seq_lens of 4",
    help="take the lengths of this batch, sliced by its requests",
)
def check_indexer_seq_rows(step: StepContext) -> Found:
    """Check the rows of ``seq_lens``."""
    decodes, prefills = step.num_decodes, step.num_prefills
    rows = step.metadata.seq_lens.shape[0]
    if rows == decodes + prefills:
        return FINE
    axes = {"num_decodes": decodes, "num_prefills": prefills}
    path = f"{step.name}.seq_lens"
    return (Breach(path, "rows are not the requests", str(decodes + prefills), str(rows), axes),)


@clause(
    "MLA352",
    "The indexer's global decode lengths have the rows of its local ones, or of requests that have a token each.",
    needs=(INDEXER_DECODE, BATCH, COUNTS, GLOBAL_LENS),
    incident="vllm#36723",
    example="dcp 2, decode.seq_lens of 3 rows, global_seq_lens of 2",
    help="slice both by the same count",
)
def check_global_rows(step: StepContext) -> Found:
    """Check the rows of ``global_seq_lens``.

    Source: vLLM 0.32.0 v1/attention/backends/mla/indexer.py, _prepare_global_decode_seq_lens: lengths of requests are
        not expanded where none has more than one token, also if the tokens are padded beyond the requests.
    """
    wanted, got = step.decode.seq_lens.shape[0], step.decode.global_seq_lens.shape[0]
    if got == wanted or (got == step.num_decodes and step.query_lens[:got].max(initial=0) <= 1):
        return FINE
    path = f"{step.name}.decode.global_seq_lens"
    return (Breach(path, "rows differ from the local lengths'", str(wanted), str(got)),)


def _readings(step: StepContext, rows: int) -> tuple[tuple[Ints, Ints], ...]:
    """Return what each row's length may be, at least and at most: by request, and by token as ones on live tokens.

    A request without a cache is padding: its rows keep the length that the offsets give them, or have none.

    Source: vLLM 0.32.0 v1/attention/backends/mla/indexer.py, _prepare_decode_tensors, keeps it; the planner has none.
    """
    decodes, tokens = step.num_decodes, step.num_decode_tokens
    queries, live = step.device_query_lens[:decodes], step.seq_lens[:decodes] > 0
    found = [(np.where(live, queries, 0), queries)] if rows == len(queries) else []
    if rows == tokens:
        ones = np.repeat(live, queries)[:rows].astype(np.int64)
        found.append((ones, np.ones_like(ones)))
    return tuple(found)


@clause(
    "MLA353",
    "The lengths of the indexer's decode rows are the queries' lengths, or 1 on live rows where a row is a token.",
    level="values",
    needs=(INDEXER_DECODE, BATCH, COUNTS, DECODE_ROWS),
    incident="vllm#39277 vllm#39542",
    example="q=[2,2], decode_lens=[2,1]",
    help="take lengths from offsets of this step",
)
def check_decode_lens(step: StepContext) -> Found:
    """Check ``decode_lens`` by request or by token; the tail behind live tokens is MLA347's."""
    got = host_ints(step.decode.decode_lens)
    readings = _readings(step, len(got))
    if any(not len(_wrong(got, least, most)) for least, most in readings):
        return FINE
    least, most = readings[0]
    row = int(_wrong(got, least, most)[0])
    path = f"{step.name}.decode.decode_lens"
    axes = {"num_decodes": step.num_decodes or 0, "num_decode_tokens": step.num_decode_tokens or 0}
    return (Breach(path, "not the query tokens of the row", f"{most[row]} at row {row}", str(got[row]), axes),)


def _wrong(got: Ints, least: Ints, most: Ints) -> Ints:
    """Return the rows with neither length."""
    own = got[: len(most)]
    return np.flatnonzero((own != least) & (own != most))
