"""The dense decode record: a row for each request, or for each token where multi-token decode is flattened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import ANY_DECODE, BATCH, COUNTS, DECODE, DECODES, Need, fact
from mla_contract.contract.clauses.tables import compare_tables
from mla_contract.contract.step.context import Ints, StepContext, largest
from mla_contract.contract.step.host import host_ints

TOTAL_LENS = Need(
    "metadata.decode.dcp_tot_seq_lens",
    lambda step: getattr(step.decode, "dcp_tot_seq_lens", None) is not None,
    of=ANY_DECODE,
)


_NO_AXES: Mapping[str, int] = MappingProxyType({})


def _token_lens(step: StepContext, rows: int) -> Ints:
    """Return the cache length that each decode token sees; 0 on rows behind the live tokens."""
    decodes = step.num_decodes or 0
    lens, queries = step.seq_lens[:decodes], step.device_query_lens[:decodes]
    owner = np.repeat(np.arange(decodes), queries)
    offset = np.arange(len(owner)) - step.device_start_loc[owner]
    expanded = np.maximum(lens[owner] - queries[owner] + offset + 1, 0)
    return np.concatenate([expanded, np.zeros(max(rows - len(owner), 0), np.int64)])[:rows]


def rows_are_ambiguous(step: StepContext, rows: int) -> bool:
    """Return whether rows may be requests or tokens: the counts are equal by padding, though a query has many."""
    decodes = step.num_decodes
    if not rows == decodes == step.num_decode_tokens:
        return False
    return largest(step.device_query_lens[:decodes]) > 1


def row_readings(step: StepContext, rows: int) -> tuple[Ints, ...]:
    """Return each legal array of the rows' global cache lengths; none where the counts are not known.

    Rows are requests where they are as many as the decodes, else tokens; and both where the counts do not tell which.
    """
    decodes = step.num_decodes
    readings = [step.seq_lens[:decodes]] if rows == decodes else []
    if not readings or rows_are_ambiguous(step, rows):
        readings.append(_token_lens(step, rows))
    return tuple(readings)


def compare_rows(
    path: str, message: str, got: Ints, readings: Sequence[Ints], axes: Mapping[str, int] = _NO_AXES
) -> Found:
    """Return the first breach of the reading that differs least; rows may have columns, one for each token."""
    wanted = np.broadcast_to(min(readings, key=lambda one: int(np.count_nonzero(got != one))), got.shape)
    wrong = np.argwhere(got != wanted)
    if not len(wrong):
        return FINE
    at = tuple(wrong[0].tolist())
    place = ", ".join(f"{name} {index}" for name, index in zip(("row", "token"), at, strict=False))
    return (Breach(path, message, f"{wanted[at]} at {place}", str(got[at]), axes),)


@clause(
    "MLA331",
    "A decode record has a row for each decode, or for each decode token; its lengths are dense.",
    needs=(DECODE,),
    incident="vllm#40987 vllm#48659",
    example="ND=3, decode.seq_lens of 2",
    help="slice every array of the record by the same count",
)
def check_decode_rows(step: StepContext) -> Found:
    """Check the rows of the decode record."""
    allowed = (step.num_decodes, step.num_decode_tokens)
    axes = {"num_decodes": step.num_decodes or 0, "num_decode_tokens": step.num_decode_tokens or 0}
    wanted = " or ".join(str(rows) for rows in dict.fromkeys(allowed))
    found = []
    for name in ("block_table", "seq_lens", "dcp_tot_seq_lens"):
        array = getattr(step.decode, name, None)
        if array is not None and array.shape[0] not in allowed:
            path = f"{step.name}.decode.{name}"
            found.append(Breach(path, "rows are neither decodes nor decode tokens", wanted, str(array.shape[0]), axes))
    if not step.decode.seq_lens.is_contiguous():
        got = f"strides {tuple(step.decode.seq_lens.stride())}"
        found.append(Breach(f"{step.name}.decode.seq_lens", "lengths are strided", "contiguous", got))
    return tuple(found)


@clause(
    "MLA332",
    "Schedule arrays are built for the rows of the padded batch: split offsets have one entry more than rows.",
    needs=(ANY_DECODE,),
    incident="vllm#21691 vllm#23789 vllm#28579 sglang#34443 FlashMLA#3",
    example="B=3 in bucket 4: num_splits has 4 entries, needs 5",
    help="pad before building the schedule",
)
def check_schedule_rows(step: StepContext) -> Found:
    """Check ``num_splits``, where a record has it, and the schedule buffer."""
    splits = getattr(step.decode, "num_splits", None)
    rows = step.decode.block_table.shape[0]
    path = f"{step.name}.decode"
    if splits is not None and splits.shape[0] != rows + 1:
        return (Breach(f"{path}.num_splits", "not built for the padded rows", f"{rows + 1}", str(splits.shape[0])),)
    capacity, schedule = step.facts.schedule_rows, getattr(step.decode, "schedule_metadata", None)
    if capacity is not None and schedule is not None and schedule.shape[0] > capacity:
        got = str(schedule.shape[0])
        return (Breach(f"{path}.schedule_metadata", "larger than its buffer", f"at most {capacity}", got),)
    return FINE


@clause(
    "MLA333",
    "Decode lengths are the cache lengths of their rows: exactly 0 on padding, local under DCP.",
    level="values",
    needs=(DECODE, BATCH, COUNTS),
    incident="vllm#51593 vllm#45227 vllm#38416",
    example="s=[9,0], decode.seq_lens=[9,-1]",
    help="expand per token first, clamp at 0, localise last",
)
def check_decode_values(step: StepContext) -> Found:
    """Check the lengths of the decode record."""
    got = host_ints(step.decode.seq_lens)
    readings = [step.facts.local_lens(lens) for lens in row_readings(step, len(got))]
    stated = getattr(step.batch, "dcp_local_seq_lens", None)
    if stated is not None and len(got) == step.num_decodes:
        # What the batch says of itself: one runner localises its bounds, and MLA218 holds them to these.
        readings.append(host_ints(stated)[: len(got)])
    return compare_rows(f"{step.name}.decode.seq_lens", "not the row's cache length", got, readings)


@clause(
    "MLA334",
    "Total decode lengths are global: taken before localisation.",
    level="values",
    needs=(BATCH, COUNTS, TOTAL_LENS),
    incident="vllm#28990",
    example="dcp 2, s=[9]: total 5 instead of 9",
    help="keep the global lengths before seq_lens is replaced",
)
def check_total_lens(step: StepContext) -> Found:
    """Check the lengths over all ranks."""
    total = getattr(step.decode, "dcp_tot_seq_lens", None)
    got = host_ints(total)
    path = f"{step.name}.decode.dcp_tot_seq_lens"
    return compare_rows(path, "total is not the global length", got, row_readings(step, len(got)))


@clause(
    "MLA335",
    "The decode record's block table holds the rows of its requests.",
    level="values",
    needs=(ANY_DECODE, BATCH, DECODES, fact("kernel_block_size")),
    incident="vllm#48659",
    example="rows of another micro-batch",
    help="slice, or repeat by query length, the batch's table",
)
def check_decode_table(step: StepContext) -> Found:
    """Check the rows of the decode table on live columns."""
    size = step.known.kernel_block_size
    own = host_ints(step.decode.block_table)
    table, lens = host_ints(step.batch.block_table_tensor), step.seq_lens
    requests = np.arange(step.num_decodes)
    readings = [requests] if len(own) == step.num_decodes else []
    if not readings or rows_are_ambiguous(step, len(own)):
        readings.append(np.repeat(requests, step.device_query_lens[: step.num_decodes]))
    path, span = f"{step.name}.decode.block_table", size * step.facts.dcp_size
    found = [compare_tables(path, own[: len(rows)], table[rows], lens[rows], span) for rows in readings]
    return FINE if FINE in found else found[0]
