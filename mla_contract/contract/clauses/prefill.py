"""The prefill record: the trailing requests, renumbered from 0."""

from __future__ import annotations

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import BATCH, DECODES, PREFILL, START_LOC, Need, fact
from mla_contract.contract.clauses.owners import equal
from mla_contract.contract.clauses.tables import compare_tables
from mla_contract.contract.step.context import Ints, StepContext, largest
from mla_contract.contract.step.host import host, host_copy, host_ints

HOST_PREFILL_LENS = Need(
    "metadata.prefill.query_lens_cpu",
    lambda step: host_copy(getattr(step.prefill, "query_lens_cpu", None)) is not None,
    of=PREFILL,
)


def prefill_lens(step: StepContext) -> Ints:
    """Return the query lengths of the prefill requests, from the host copy."""
    lens: Ints = step.query_lens[step.num_decodes :]
    return lens


@clause(
    "MLA261",
    "The prefill record's longest query is the longest among the prefill requests.",
    needs=(PREFILL, DECODES, START_LOC),
    incident="vllm#39277",
    example="q=[1,5], ND=1, prefill.max_query_len=4",
    help="take the maximum over the prefill requests only",
)
def check_prefill_max(step: StepContext) -> Found:
    """Check the stated maximum of the prefill record."""
    lens = prefill_lens(step)
    longest, stated = largest(lens), step.prefill.max_query_len
    if stated >= longest:
        return FINE
    path = f"{step.name}.prefill.max_query_len"
    return (Breach(path, "a prefill query is longer", f"at least {longest}", str(stated)),)


@clause(
    "MLA262",
    "The prefill record's host query lengths are those of the batch.",
    needs=(DECODES, START_LOC, HOST_PREFILL_LENS),
    incident="vllm#48642",
    example="q=[1,5], ND=1, query_lens_cpu=[1]",
    help="slice the batch's lengths from num_decodes on",
)
def check_prefill_host_lens(step: StepContext) -> Found:
    """Check the host lengths of the prefill record."""
    lens = prefill_lens(step)
    own = host_copy(getattr(step.prefill, "query_lens_cpu", None))
    if own.tolist() == lens.tolist():
        return FINE
    path = f"{step.name}.prefill.query_lens_cpu"
    return (Breach(path, "not the lengths of the prefill requests", str(lens[:4].tolist()), str(own[:4].tolist())),)


@clause(
    "MLA263",
    "The prefill record's offsets are those of the batch from the first prefill on, starting at 0 again.",
    level="values",
    needs=(PREFILL, BATCH, DECODES),
    incident="vllm#48642",
    example="q=[1,5], ND=1, prefill.query_start_loc=[1,6]",
    help="subtract query_start_loc[num_decodes]",
)
def check_prefill_offsets(step: StepContext) -> Found:
    """Check the device offsets of the prefill record."""
    batch = step.device_start_loc[step.num_decodes :]
    wanted, own = batch - batch[0], host_ints(step.prefill.query_start_loc)
    if equal(own, wanted):
        return FINE
    path = f"{step.name}.prefill.query_start_loc"
    return (Breach(path, "not the offsets of the prefill requests", str(wanted[:5].tolist()), str(own[:5].tolist())),)


@clause(
    "MLA264",
    "The prefill record's block table holds the rows of the prefill requests.",
    level="values",
    needs=(PREFILL, BATCH, fact("kernel_block_size")),
    incident="vllm#48659",
    example="q=[1,5], ND=1, prefill.block_table = first row",
    help="slice the batch's table from num_decodes on",
)
def check_prefill_table(step: StepContext) -> Found:
    """Check the rows of the prefill record's block table on its live columns."""
    size = step.known.kernel_block_size
    first = step.num_decodes or 0
    return compare_tables(
        f"{step.name}.prefill.block_table",
        host(step.prefill.block_table),
        step.table[first:],
        step.seq_lens[first:],
        size * step.facts.dcp_size,
    )
