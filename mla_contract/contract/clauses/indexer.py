"""The lightning indexer's record: counts, and its decode part."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause, lacks
from mla_contract.contract.clauses.decode import compare_rows, row_readings
from mla_contract.contract.step.context import Ints, StepContext
from mla_contract.contract.step.host import host_ints


def _decode(subject: StepContext) -> bool:
    return subject.is_indexer and subject.decode is not None and subject.num_decodes is not None


@clause(
    "MLA341",
    "The indexer's decode and prefill tokens sum to the batch's tokens.",
    invariant="I1",
    incident="vllm#35690 vllm#34187",
    example="T=6, NDT=1, NPT=4",
    help="take both from the split of this batch",
)
def check_indexer_sums(subject: StepContext) -> Found:
    """Check the token counts of the indexer's record."""
    if not subject.is_indexer or subject.num_tokens is None or subject.num_decode_tokens is None:
        return lacks("indexer metadata and batch.num_actual_tokens")
    prefill = subject.metadata.num_prefill_tokens
    if subject.num_decode_tokens + prefill == subject.num_tokens:
        return FINE
    axes = {"num_decode_tokens": subject.num_decode_tokens, "num_actual_tokens": subject.num_tokens}
    wanted = str(subject.num_tokens - subject.num_decode_tokens)
    return (Breach(f"{subject.name}.num_prefill_tokens", "tokens do not sum up", wanted, str(prefill), axes),)


@clause(
    "MLA342",
    "The indexer has a decode part exactly when there are decodes, and a prefill part exactly with prefills.",
    invariant="I1",
    incident="vllm#52512",
    example="ND=2, decode=None",
    help="build each part from the counts",
)
def check_indexer_parts(subject: StepContext) -> Found:
    """Check presence of the indexer's parts."""
    if not subject.is_indexer:
        return lacks("indexer metadata")
    found = []
    for name, count in (("decode", subject.num_decodes), ("prefill", subject.num_prefills)):
        there = getattr(subject.metadata, name) is not None
        if there != bool(count):
            wanted = f"a record of {count}" if count else "None"
            got = "a record" if there else "None"
            found.append(Breach(f"{subject.name}.{name}", "presence does not follow the count", wanted, got))
    return tuple(found)


@clause(
    "MLA343",
    "The indexer's decode arrays have one count of rows, of decodes or of decode tokens; lengths are dense int32.",
    invariant="D1",
    incident="vllm#40987 vllm#39542 vllm#56237",
    example="flattened, q=[1]*3, NDT=4: lengths of 3 rows",
    help="view the flat persistent buffer; slice every array by the same count",
)
def check_indexer_rows(subject: StepContext) -> Found:
    """Check rows and density of the decode part."""
    if not _decode(subject):
        return lacks("indexer metadata.decode")
    decode, found = subject.decode, []
    decodes, tokens = subject.num_decodes or 0, subject.num_decode_tokens or 0
    axes = {"num_decodes": decodes, "num_decode_tokens": tokens}
    rows = decode.block_table.shape[0]
    if rows not in (decodes, tokens):
        path = f"{subject.name}.decode.block_table"
        found.append(Breach(path, "rows are neither decodes nor tokens", f"{decodes} or {tokens}", str(rows), axes))
    if decode.decode_lens.shape[0] != rows:
        got = str(decode.decode_lens.shape[0])
        found.append(Breach(f"{subject.name}.decode.decode_lens", "rows differ from the table's", str(rows), got, axes))
    own = decode.seq_lens.shape[0]
    if own != rows and own != tokens:
        path = f"{subject.name}.decode.seq_lens"
        found.append(Breach(path, "rows differ from the table's", str(rows), str(own), axes))
    if not decode.seq_lens.is_contiguous():
        got = f"strides {tuple(decode.seq_lens.stride())}"
        found.append(Breach(f"{subject.name}.decode.seq_lens", "lengths are strided", "contiguous", got))
    return tuple(found)


@clause(
    "MLA344",
    "Without padding of queries the decode tokens are rows times one length.",
    invariant="D5",
    incident="vllm#52500 vllm#39542",
    example="decode_lens=[1]*6, NDT=8: 8 % 6 != 0",
    help="requires_padding must look at the padded tokens, not only at real lengths",
)
def check_requires_padding(subject: StepContext) -> Found:
    """Check that unpadded decodes are a rectangle."""
    if not _decode(subject):
        return lacks("indexer metadata.decode")
    if subject.decode.requires_padding:
        return FINE
    rows, tokens = subject.decode.block_table.shape[0], subject.num_decode_tokens or 0
    width = subject.decode.seq_lens.shape[1] if len(subject.decode.seq_lens.shape) == 2 else 1
    if rows * width == tokens:
        return FINE
    axes = {"num_decode_rows": rows, "num_decode_tokens": tokens}
    got = f"False with {rows} rows of {width}"
    return (Breach(f"{subject.name}.decode.requires_padding", "tokens are no rectangle", "True", got, axes),)


@clause(
    "MLA345",
    "The decode tokens fit the persistent buffers, which cover every batch that can be captured or scheduled.",
    invariant="M8",
    incident="vllm#39277 vllm#41016",
    example="max_num_seqs=16, capture up to 32, batch 24",
    help="size buffers by max(max_num_seqs, largest captured batch) * next_n",
)
def check_capacity(subject: StepContext) -> Found:
    """Check buffers against configuration and batch."""
    facts, rows = subject.facts, subject.facts.buffer_rows
    if rows is None:
        return lacks("facts.buffer_rows")
    if facts.max_num_seqs is not None and facts.next_n is not None:
        needed = max(facts.max_num_seqs, facts.max_capture_size or 0) * facts.next_n
        if rows < needed:
            axes = {"max_num_seqs": facts.max_num_seqs, "max_capture_size": facts.max_capture_size or 0}
            return (Breach(f"{subject.name}.decode", "buffers are too small", f"{needed} rows", str(rows), axes),)
    used = subject.num_decode_tokens or 0
    if (
        subject.start_loc is not None
        and subject.num_decodes is not None
        and subject.num_decodes < len(subject.start_loc)
    ):
        used = max(used, int(subject.start_loc[subject.num_decodes]))
    if used <= rows:
        return FINE
    return (Breach(f"{subject.name}.decode", "decode tokens exceed the buffers", f"at most {rows}", str(used)),)


@clause(
    "MLA346",
    "Padded decode output goes to scratch: the rows written back are the decode tokens.",
    invariant="I3",
    incident="vllm#32175 vllm#32172 vllm#39542",
    example="q=[2,1,5], next_n=2: padded 4 > NDT 3, row 3 is the first prefill row",
    help="unpack to the decode tokens before writing the shared top-k rows",
)
def check_topk_rows(subject: StepContext) -> Found:
    """Check the rows that the padded path writes."""
    written, tokens = subject.facts.topk_rows, subject.num_decode_tokens
    if written is None or tokens is None:
        return lacks("facts.topk_rows")
    if written == tokens:
        return FINE
    axes = {"num_decode_tokens": tokens}
    got = str(written)
    return (Breach(f"{subject.name}.decode", "top-k rows written are not the decode tokens", str(tokens), got, axes),)


@clause(
    "MLA347",
    "The lengths of the decode rows sum to no more than the decode tokens.",
    level="values",
    invariant="D4",
    incident="vllm#39277 vllm#39542",
    example="live 1, bucket 4, decode_lens=[1,8,8,8], NDT=8",
    help="take lengths from offsets of this step",
)
def check_decode_lens_sum(subject: StepContext) -> Found:
    """Check the sum of ``decode_lens``."""
    if not _decode(subject):
        return lacks("indexer metadata.decode")
    total, tokens = int(host_ints(subject.decode.decode_lens).sum()), subject.num_decode_tokens or 0
    if total <= tokens:
        return FINE
    axes = {"num_decode_tokens": tokens}
    path = f"{subject.name}.decode.decode_lens"
    return (Breach(path, "lengths exceed the decode tokens", f"at most {tokens}", str(total), axes),)


def _wanted_lens(subject: StepContext, rows: int, width: int) -> tuple[Ints, ...]:
    """Return the keys that each decode token may see, in tokens over all ranks: one array for each legal layout.

    A native row of unequal queries ends with its last token, or begins with its first and ends in zeros.

    Source: vLLM 0.32.0 v1/attention/backends/mla/indexer.py, _prepare_decode_tensors, is of the first kind; its tests
        and the planner are of the second.
    """
    if rows != subject.num_decodes or width <= 1:
        return tuple(flat[:, None] for flat in row_readings(subject, rows))
    lens, column = subject.seq_lens[:rows, None], np.arange(width)
    queries = subject.device_query_lens[:rows, None]
    right: Ints = np.maximum(lens - width + 1 + column, 0)
    if np.all(queries == width):
        return (right,)
    left: Ints = np.where(column < queries, lens - queries + column + 1, 0)
    return right, left


@clause(
    "MLA348",
    "A decode token sees context + its offset + 1 keys, in states of this rank; padding sees exactly 0.",
    level="values",
    invariant="D3",
    incident="vllm#51593 vllm#45227",
    example="s=[9,0], next_n=2: [[8,9],[0,0]], buggy [-1,0]",
    help="expand per token, clamp at 0, localise, then divide by the compress ratio",
)
def check_indexer_lens(subject: StepContext) -> Found:
    """Check the lengths of the decode part."""
    if not _decode(subject) or subject.batch is None:
        return lacks("indexer metadata.decode")
    got = host_ints(subject.decode.seq_lens)
    got = got[:, None] if got.ndim == 1 else got
    facts, readings = subject.facts, _wanted_lens(subject, *got.shape)
    states = [facts.local_lens(reading) // facts.compress_ratio for reading in readings]
    axes = {"num_decode_rows": got.shape[0], "compress_ratio": facts.compress_ratio}
    return compare_rows(f"{subject.name}.decode.seq_lens", "not the keys that the token may see", got, states, axes)


@clause(
    "MLA349",
    "The logits schedule gets at least one length of 1 or more, or clamped lengths.",
    level="values",
    invariant="I7",
    incident="vllm#51970 vllm#51499 vllm#51181 vllm#51972",
    example="B=32, s=[1]*32, ratio 4: all lengths 0",
    help="clamp the schedule's input, not the lengths themselves",
)
def check_schedule_input(subject: StepContext) -> Found:
    """Check that not all compressed lengths are 0."""
    if not _decode(subject) or subject.facts.schedule_clamped is None:
        return lacks("facts.schedule_clamped")
    lens = host_ints(subject.decode.seq_lens)
    if subject.facts.schedule_clamped or not lens.size or lens.max() >= 1:
        return FINE
    path = f"{subject.name}.decode.seq_lens"
    axes = {"num_decode_rows": lens.shape[0], "compress_ratio": subject.facts.compress_ratio}
    return (Breach(path, "all lengths are 0 in the schedule", "one of at least 1", "0 throughout", axes),)


@clause(
    "MLA350",
    "Global decode lengths are taken before localisation, and stay in tokens.",
    level="values",
    invariant="D7",
    incident="vllm#28990 vllm#36723",
    example="dcp 2, s=[9]: global 5 instead of 9",
    help="expand the global lengths into a buffer of their own; only the local ones are divided by the compress ratio",
)
def check_global_lens(subject: StepContext) -> Found:
    """Check ``global_seq_lens`` by request or by token."""
    stated = getattr(subject.decode, "global_seq_lens", None)
    if not subject.is_indexer or stated is None or subject.batch is None:
        return lacks("indexer metadata.decode.global_seq_lens")
    got = host_ints(stated)
    got = got[:, None] if got.ndim == 1 else got
    path = f"{subject.name}.decode.global_seq_lens"
    return compare_rows(path, "not the length over all ranks", got, _wanted_lens(subject, *got.shape))
