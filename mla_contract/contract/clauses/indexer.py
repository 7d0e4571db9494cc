"""The lightning indexer's record: counts, and its decode part."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.decode import compare_rows, row_readings
from mla_contract.contract.clauses.need import (
    BATCH,
    COUNTS,
    DECODES,
    GLOBAL_LENS,
    INDEXER,
    INDEXER_DECODE,
    NUM_TOKENS,
    fact,
)
from mla_contract.contract.step.context import Ints, StepContext
from mla_contract.contract.step.host import host_ints


@clause(
    "MLA341",
    "The indexer's decode and prefill tokens sum to the batch's tokens.",
    needs=(INDEXER, NUM_TOKENS, COUNTS),
    incident="vllm#35690 vllm#34187",
    example="T=6, NDT=1, NPT=4",
    help="take both from the split of this batch",
)
def check_indexer_sums(step: StepContext) -> Found:
    """Check the token counts of the indexer's record."""
    prefill = step.metadata.num_prefill_tokens
    if step.num_decode_tokens + prefill == step.num_tokens:
        return FINE
    axes = {"num_decode_tokens": step.num_decode_tokens, "num_actual_tokens": step.num_tokens}
    wanted = str(step.num_tokens - step.num_decode_tokens)
    return (Breach(f"{step.name}.num_prefill_tokens", "tokens do not sum up", wanted, str(prefill), axes),)


@clause(
    "MLA342",
    "The indexer has a decode part exactly when there are decodes, and a prefill part exactly with prefills.",
    needs=(INDEXER,),
    incident="vllm#52512",
    example="ND=2, decode=None",
    help="build each part from the counts",
)
def check_indexer_parts(step: StepContext) -> Found:
    """Check presence of the indexer's parts."""
    found = []
    for name, count in (("decode", step.num_decodes), ("prefill", step.num_prefills)):
        there = getattr(step.metadata, name) is not None
        if there != bool(count):
            wanted = f"a record of {count}" if count else "None"
            got = "a record" if there else "None"
            found.append(Breach(f"{step.name}.{name}", "presence does not follow the count", wanted, got))
    return tuple(found)


@clause(
    "MLA343",
    "The indexer's decode arrays have one count of rows, of decodes or of decode tokens; lengths are dense int32.",
    needs=(INDEXER_DECODE, DECODES),
    incident="vllm#40987 vllm#39542 vllm#56237",
    example="flattened, q=[1]*3, NDT=4: lengths of 3 rows",
    help="view the flat persistent buffer; slice every array by the same count",
)
def check_indexer_rows(step: StepContext) -> Found:
    """Check rows and density of the decode part."""
    decode, found = step.decode, []
    decodes, tokens = step.num_decodes or 0, step.num_decode_tokens or 0
    axes = {"num_decodes": decodes, "num_decode_tokens": tokens}
    rows = decode.block_table.shape[0]
    if rows not in (decodes, tokens):
        path = f"{step.name}.decode.block_table"
        found.append(Breach(path, "rows are neither decodes nor tokens", f"{decodes} or {tokens}", str(rows), axes))
    if decode.decode_lens.shape[0] != rows:
        got = str(decode.decode_lens.shape[0])
        found.append(Breach(f"{step.name}.decode.decode_lens", "rows differ from the table's", str(rows), got, axes))
    own = decode.seq_lens.shape[0]
    if own != rows and own != tokens:
        path = f"{step.name}.decode.seq_lens"
        found.append(Breach(path, "rows differ from the table's", str(rows), str(own), axes))
    if not decode.seq_lens.is_contiguous():
        got = f"strides {tuple(decode.seq_lens.stride())}"
        found.append(Breach(f"{step.name}.decode.seq_lens", "lengths are strided", "contiguous", got))
    return tuple(found)


@clause(
    "MLA344",
    "Without padding of queries the decode tokens are rows times one length.",
    needs=(INDEXER_DECODE, DECODES),
    incident="vllm#52500 vllm#39542",
    example="decode_lens=[1]*6, NDT=8: 8 % 6 != 0",
    help="requires_padding must look at the padded tokens, not only at real lengths",
)
def check_requires_padding(step: StepContext) -> Found:
    """Check that unpadded decodes are a rectangle."""
    if step.decode.requires_padding:
        return FINE
    rows, tokens = step.decode.block_table.shape[0], step.num_decode_tokens or 0
    width = step.decode.seq_lens.shape[1] if len(step.decode.seq_lens.shape) == 2 else 1
    if rows * width == tokens:
        return FINE
    axes = {"num_decode_rows": rows, "num_decode_tokens": tokens}
    got = f"False with {rows} rows of {width}"
    return (Breach(f"{step.name}.decode.requires_padding", "tokens are not a rectangle", "True", got, axes),)


@clause(
    "MLA345",
    "The decode tokens fit the persistent buffers, which cover every batch that can be captured or scheduled.",
    needs=(fact("buffer_rows"),),
    incident="vllm#39277 vllm#41016",
    example="max_num_seqs=16, capture up to 32, batch 24",
    help="size buffers by max(max_num_seqs, largest captured batch) * next_n",
)
def check_capacity(step: StepContext) -> Found:
    """Check buffers against configuration and batch."""
    facts, rows = step.facts, step.known.buffer_rows
    if facts.max_num_seqs is not None and facts.next_n is not None:
        needed = max(facts.max_num_seqs, facts.max_capture_size or 0) * facts.next_n
        if rows < needed:
            axes = {"max_num_seqs": facts.max_num_seqs, "max_capture_size": facts.max_capture_size or 0}
            return (Breach(f"{step.name}.decode", "buffers are too small", f"{needed} rows", str(rows), axes),)
    used = step.num_decode_tokens or 0
    if step.start_loc is not None and step.num_decodes is not None and step.num_decodes < len(step.start_loc):
        used = max(used, int(step.start_loc[step.num_decodes]))
    if used <= rows:
        return FINE
    return (Breach(f"{step.name}.decode", "decode tokens exceed the buffers", f"at most {rows}", str(used)),)


@clause(
    "MLA346",
    "Padded decode output goes to scratch: the rows written back are the decode tokens.",
    needs=(COUNTS, fact("topk_rows")),
    incident="vllm#32175 vllm#32172 vllm#39542",
    example="q=[2,1,5], next_n=2: padded 4 > NDT 3, row 3 is the first prefill row",
    help="unpack to the decode tokens before writing the shared top-k rows",
)
def check_topk_rows(step: StepContext) -> Found:
    """Check the rows that the padded path writes."""
    written, tokens = step.known.topk_rows, step.num_decode_tokens
    if written == tokens:
        return FINE
    axes = {"num_decode_tokens": tokens}
    got = str(written)
    return (Breach(f"{step.name}.decode", "top-k rows written are not the decode tokens", str(tokens), got, axes),)


@clause(
    "MLA347",
    "The lengths of the decode rows sum to no more than the decode tokens.",
    level="values",
    needs=(INDEXER_DECODE, DECODES),
    incident="vllm#39277 vllm#39542",
    example="live 1, bucket 4, decode_lens=[1,8,8,8], NDT=8",
    help="take lengths from offsets of this step",
)
def check_decode_lens_sum(step: StepContext) -> Found:
    """Check the sum of ``decode_lens``."""
    total, tokens = int(host_ints(step.decode.decode_lens).sum()), step.num_decode_tokens or 0
    if total <= tokens:
        return FINE
    axes = {"num_decode_tokens": tokens}
    path = f"{step.name}.decode.decode_lens"
    return (Breach(path, "lengths exceed the decode tokens", f"at most {tokens}", str(total), axes),)


def _wanted_lens(step: StepContext, rows: int, width: int) -> tuple[Ints, ...]:
    """Return the keys that each decode token may see, in tokens over all ranks: one array for each legal layout.

    A native row of unequal queries ends with its last token, or begins with its first and ends in zeros.

    Source: vLLM 0.32.0 v1/attention/backends/mla/indexer.py, _prepare_decode_tensors, is of the first kind; its tests
        and the planner are of the second.
    """
    if rows != step.num_decodes or width <= 1:
        return tuple(flat[:, None] for flat in row_readings(step, rows))
    lens, column = step.seq_lens[:rows, None], np.arange(width)
    queries = step.device_query_lens[:rows, None]
    right: Ints = np.maximum(lens - width + 1 + column, 0)
    if np.all(queries == width):
        return (right,)
    left: Ints = np.where(column < queries, lens - queries + column + 1, 0)
    return right, left


@clause(
    "MLA348",
    "A decode token sees context + its offset + 1 keys, in states of this rank; padding sees exactly 0.",
    level="values",
    needs=(INDEXER_DECODE, BATCH, COUNTS),
    incident="vllm#51593 vllm#45227",
    example="s=[9,0], next_n=2: [[8,9],[0,0]], buggy [-1,0]",
    help="expand per token, clamp at 0, localise, then divide by the compress ratio",
)
def check_indexer_lens(step: StepContext) -> Found:
    """Check the lengths of the decode part."""
    got = host_ints(step.decode.seq_lens)
    got = got[:, None] if got.ndim == 1 else got
    facts, readings = step.facts, _wanted_lens(step, *got.shape)
    states = [facts.local_lens(reading) // facts.compress_ratio for reading in readings]
    axes = {"num_decode_rows": got.shape[0], "compress_ratio": facts.compress_ratio}
    return compare_rows(f"{step.name}.decode.seq_lens", "not the keys that the token may see", got, states, axes)


@clause(
    "MLA349",
    "The logits schedule gets at least one length of 1 or more, or clamped lengths.",
    level="values",
    needs=(INDEXER_DECODE, DECODES, fact("schedule_clamped")),
    incident="vllm#51970 vllm#51499 vllm#51181 vllm#51972",
    example="B=32, s=[1]*32, ratio 4: all lengths 0",
    help="clamp the schedule's input, not the lengths themselves",
)
def check_schedule_input(step: StepContext) -> Found:
    """Check that not all compressed lengths are 0."""
    lens = host_ints(step.decode.seq_lens)
    if step.facts.schedule_clamped or not lens.size or lens.max() >= 1:
        return FINE
    path = f"{step.name}.decode.seq_lens"
    axes = {"num_decode_rows": lens.shape[0], "compress_ratio": step.facts.compress_ratio}
    return (Breach(path, "all lengths are 0 in the schedule", "one of at least 1", "0 throughout", axes),)


@clause(
    "MLA350",
    "Global decode lengths are taken before localisation, and stay in tokens.",
    level="values",
    needs=(INDEXER_DECODE, BATCH, COUNTS, GLOBAL_LENS),
    incident="vllm#28990 vllm#36723",
    example="dcp 2, s=[9]: global 5 instead of 9",
    help="expand the global lengths into a buffer of their own; only the local ones are divided by the compress ratio",
)
def check_global_lens(step: StepContext) -> Found:
    """Check ``global_seq_lens`` by request or by token."""
    stated = getattr(step.decode, "global_seq_lens", None)
    got = host_ints(stated)
    got = got[:, None] if got.ndim == 1 else got
    path = f"{step.name}.decode.global_seq_lens"
    return compare_rows(path, "not the length over all ranks", got, _wanted_lens(step, *got.shape))
