"""The dense decode record: a row for each request, or for each token where multi-token decode is flattened."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause, lacks
from mla_contract.contract.clauses.host import host_ints
from mla_contract.contract.clauses.prefill import compare_tables
from mla_contract.contract.clauses.subject import Ints, Subject


def _dense(subject: Subject) -> bool:
    return subject.is_mla and subject.decode is not None and subject.num_decodes is not None


def row_lens(subject: Subject, rows: int) -> Ints | None:
    """Return the global cache length of each decode row: by request, or by token where ``rows`` counts tokens."""
    decodes, tokens = subject.num_decodes, subject.num_decode_tokens
    if decodes is None or tokens is None:
        return None
    lens = subject.seq_lens[:decodes]
    if rows == decodes:
        return lens
    queries = subject.device_query_lens[:decodes]
    owner = np.repeat(np.arange(decodes), queries)
    offset = np.arange(len(owner)) - subject.device_start_loc[owner]
    expanded = np.maximum(lens[owner] - queries[owner] + offset + 1, 0)
    return np.concatenate([expanded, np.zeros(max(rows - len(owner), 0), np.int64)])[:rows]


@clause(
    "MLA331",
    "A decode record has a row for each decode, or for each decode token; its lengths are dense.",
    invariant="D1",
    incident="vllm#40987 vllm#48659",
    example="ND=3, decode.seq_lens of 2",
    help="slice every array of the record by the same count",
)
def check_decode_rows(subject: Subject) -> Found:
    """Check the rows of the decode record."""
    if not _dense(subject):
        return lacks("metadata.decode")
    allowed = (subject.num_decodes, subject.num_decode_tokens)
    axes = {"num_decodes": subject.num_decodes or 0, "num_decode_tokens": subject.num_decode_tokens or 0}
    wanted = " or ".join(str(rows) for rows in dict.fromkeys(allowed))
    found = []
    for name in ("block_table", "seq_lens", "dcp_tot_seq_lens"):
        array = getattr(subject.decode, name, None)
        if array is not None and array.shape[0] not in allowed:
            path = f"{subject.name}.decode.{name}"
            found.append(Breach(path, "rows are neither decodes nor decode tokens", wanted, str(array.shape[0]), axes))
    if not subject.decode.seq_lens.is_contiguous():
        got = f"strides {tuple(subject.decode.seq_lens.stride())}"
        found.append(Breach(f"{subject.name}.decode.seq_lens", "lengths are strided", "contiguous", got))
    return tuple(found)


@clause(
    "MLA332",
    "Schedule arrays are built for the rows of the padded batch: split offsets have one entry more than rows.",
    invariant="D6",
    incident="vllm#21691 vllm#23789 vllm#28579 sglang#34443 FlashMLA#3",
    example="B=3 in bucket 4: num_splits has 4 entries, needs 5",
    help="pad before building the schedule",
)
def check_schedule_rows(subject: Subject) -> Found:
    """Check ``num_splits``, where a record has it, and the schedule buffer."""
    if subject.decode is None:
        return lacks("metadata.decode")
    splits = getattr(subject.decode, "num_splits", None)
    rows = subject.decode.block_table.shape[0]
    path = f"{subject.name}.decode"
    if splits is not None and splits.shape[0] != rows + 1:
        return (Breach(f"{path}.num_splits", "not built for the padded rows", f"{rows + 1}", str(splits.shape[0])),)
    capacity, schedule = subject.facts.schedule_rows, getattr(subject.decode, "schedule_metadata", None)
    if capacity is not None and schedule is not None and schedule.shape[0] > capacity:
        got = str(schedule.shape[0])
        return (Breach(f"{path}.schedule_metadata", "larger than its buffer", f"at most {capacity}", got),)
    return FINE


@clause(
    "MLA333",
    "Decode lengths are the cache lengths of their rows: exactly 0 on padding, local under DCP.",
    tier="values",
    invariant="D2",
    incident="vllm#51593 vllm#45227 vllm#38416",
    example="s=[9,0], decode.seq_lens=[9,-1]",
    help="expand per token first, clamp at 0, localise last",
)
def check_decode_values(subject: Subject) -> Found:
    """Check the lengths of the decode record."""
    if not _dense(subject) or subject.batch is None:
        return lacks("metadata.decode")
    got = host_ints(subject.decode.seq_lens)
    wanted = row_lens(subject, len(got))
    if wanted is None:
        return lacks("metadata counts")
    if subject.facts.dcp_size > 1:
        wanted = np.array([subject.facts.local_len(int(length)) for length in wanted])
    wrong = np.flatnonzero(got != wanted)
    if not len(wrong):
        return FINE
    row = int(wrong[0])
    path = f"{subject.name}.decode.seq_lens"
    return (Breach(path, "not the row's cache length", f"{wanted[row]} at row {row}", str(got[row])),)


@clause(
    "MLA334",
    "Total decode lengths are global: taken before localisation.",
    tier="values",
    invariant="D7",
    incident="vllm#28990",
    example="dcp 2, s=[9]: total 5 instead of 9",
    help="keep the global lengths before seq_lens is replaced",
)
def check_total_lens(subject: Subject) -> Found:
    """Check the lengths over all ranks."""
    total = getattr(subject.decode, "dcp_tot_seq_lens", None)
    if total is None or subject.batch is None:
        return lacks("metadata.decode.dcp_tot_seq_lens")
    got = host_ints(total)
    wanted = row_lens(subject, len(got))
    wrong = np.flatnonzero(got != wanted) if wanted is not None else np.array([], np.int64)
    if wanted is None or not len(wrong):
        return FINE
    row = int(wrong[0])
    path = f"{subject.name}.decode.dcp_tot_seq_lens"
    return (Breach(path, "total is not the global length", f"{wanted[row]} at row {row}", str(got[row])),)


@clause(
    "MLA335",
    "The decode record's block table holds the rows of its requests.",
    tier="values",
    invariant="D1",
    incident="vllm#48659",
    example="rows of another micro-batch",
    help="slice, or repeat by query length, the batch's table",
)
def check_decode_table(subject: Subject) -> Found:
    """Check the rows of the decode table on live columns."""
    size = subject.facts.kernel_block_size
    if subject.decode is None or subject.batch is None or size is None or subject.num_decodes is None:
        return lacks("metadata.decode and facts.kernel_block_size")
    own = host_ints(subject.decode.block_table)
    table, lens = host_ints(subject.batch.block_table_tensor), subject.seq_lens
    rows = np.arange(subject.num_decodes)
    if len(own) != subject.num_decodes:
        rows = np.repeat(rows, subject.device_query_lens[: subject.num_decodes])
    span = size * subject.facts.dcp_size
    return compare_tables(f"{subject.name}.decode.block_table", own[: len(rows)], table[rows], lens[rows], span)
