"""The common batch, as far as host integers and host copies decide it."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause, lacks
from mla_contract.contract.step.context import StepContext


@clause(
    "MLA201",
    "Query offsets start at 0 and never fall.",
    invariant="C1",
    incident="vllm#34187",
    example="qsl=[0,4,2]",
    help="build query_start_loc as the prefix sum of the query lengths",
)
def check_start_loc_order(subject: StepContext) -> Found:
    """Check ``query_start_loc_cpu`` by itself."""
    start_loc, lens = subject.start_loc, subject.query_lens
    if start_loc is None or lens is None:
        return lacks("batch.query_start_loc_cpu")
    if not len(start_loc):
        return (Breach(f"{subject.batch_name}.query_start_loc_cpu", "offsets are empty", "at least one entry", "0"),)
    if start_loc[0] == 0 and subject.min_query_len >= 0:
        return FINE
    row = int(np.argmax(lens < 0)) if start_loc[0] == 0 else 0
    got = f"{start_loc[row : row + 2].tolist()} at entry {row}"
    path = f"{subject.batch_name}.query_start_loc_cpu"
    return (Breach(path, "offsets do not start at 0 or fall", "0, then a non-decreasing sequence", got),)


@clause(
    "MLA202",
    "The last query offset is the number of tokens: requests and tokens are padded together or not at all.",
    invariant="C1",
    incident="vllm#34187 vllm#39277",
    example="num_reqs=2, num_actual_tokens=1, qsl=[0,1,2]",
    help="hand the builder requests and tokens of one padding",
)
def check_token_total(subject: StepContext) -> Found:
    """Check the batch's total against its offsets."""
    start_loc, tokens = subject.start_loc, subject.num_tokens
    if start_loc is None or tokens is None or not len(start_loc):
        return lacks("batch.query_start_loc_cpu")
    if int(start_loc[-1]) == tokens:
        return FINE
    path = f"{subject.batch_name}.num_actual_tokens"
    reqs = {"num_reqs": subject.num_reqs or 0}
    return (Breach(path, "tokens differ from the last offset", f"{start_loc[-1]}", str(tokens), reqs),)


@clause(
    "MLA203",
    "A padding request has no query token, or the uniform length of the padded batch.",
    invariant="C1b",
    incident="vllm#39277",
    example="live 1, bucket 4, qsl=[0,1,9,17,25], s=[5,0,0,0], max_query_len=2",
    help="repeat the last live offset in the padded tail at every step",
)
def check_padding_queries(subject: StepContext) -> Found:
    """Check the query lengths of requests whose bound is 0."""
    lens, upper = subject.query_lens, subject.upper_lens
    if lens is None or upper is None:
        return lacks("batch.seq_lens_cpu_upper_bound")
    if subject.min_context_len >= 0 and subject.min_query_len > 0:
        return FINE
    padding = lens[upper == 0]
    live = lens[upper > 0]
    uniform = int(live.max()) if len(live) else int(padding.max(initial=0))
    stale = padding[(padding != 0) & (padding != uniform)]
    if not len(stale):
        return FINE
    return (
        Breach(
            f"{subject.batch_name}.query_start_loc_cpu",
            "padding requests have query tokens of an earlier step",
            f"0 or the uniform length {uniform}",
            f"lengths {stale[:4].tolist()} where seq_lens_cpu_upper_bound is 0",
            {"num_reqs": len(lens)},
        ),
    )


@clause(
    "MLA204",
    "A live request has at least as many tokens in its sequence as in its query.",
    invariant="C3",
    incident="vllm#51593",
    example="q=[4], s=[3]",
    help="the bound counts cached and new tokens",
)
def check_upper_covers_query(subject: StepContext) -> Found:
    """Check the host bound against the query lengths."""
    upper, context = subject.upper_lens, subject.context_lens
    if upper is None or context is None:
        return lacks("batch.seq_lens_cpu_upper_bound")
    if subject.min_context_len >= 0:
        return FINE
    rows = np.flatnonzero((context < 0) & (upper != 0))
    if not len(rows):
        return FINE
    row = int(rows[0])
    return (
        Breach(
            f"{subject.batch_name}.seq_lens_cpu_upper_bound",
            "a sequence is shorter than its own query",
            f"at least {upper[row] - context[row]} for request {row}",
            str(int(upper[row])),
        ),
    )


@clause(
    "MLA205",
    "max_query_len bounds every query.",
    invariant="C4",
    incident="vllm#39277",
    example="q=[1,8], max_query_len=2",
    help="recompute the maximum after padding",
)
def check_max_query_len(subject: StepContext) -> Found:
    """Check the stated maximum of the batch."""
    if subject.query_lens is None:
        return lacks("batch.query_start_loc_cpu")
    stated = subject.batch.max_query_len
    if subject.max_query_len <= stated:
        return FINE
    path = f"{subject.batch_name}.max_query_len"
    return (Breach(path, "a query is longer", f"at least {subject.max_query_len}", str(stated)),)


@clause(
    "MLA206",
    "Outside capture max_seq_len is the largest host bound, not the model's longest sequence.",
    invariant="C4",
    incident="vllm#43991",
    example="s=[10], max_seq_len=8192 with one live column",
    help="take the maximum of seq_lens_cpu_upper_bound; the model's limit is for capture only",
)
def check_max_seq_len(subject: StepContext) -> Found:
    """Check the stated longest sequence of the batch."""
    if subject.upper_lens is None:
        return lacks("batch.seq_lens_cpu_upper_bound")
    if subject.facts.capturing is not False:
        return lacks("facts.capturing")
    stated = subject.batch.max_seq_len
    if stated == subject.max_upper_len:
        return FINE
    path = f"{subject.batch_name}.max_seq_len"
    return (Breach(path, "longest sequence differs from the host bounds", str(subject.max_upper_len), str(stated)),)


@clause(
    "MLA207",
    "The block table's columns cover the longest sequence: columns times block size, times ranks.",
    invariant="C6b",
    incident="vllm#54359 vllm#56380 vllm#45380",
    example="410 columns, page 32*4, max_seq_len=262144",
    help="build the table at the kernel's block size",
)
def check_table_width(subject: StepContext) -> Found:
    """Check the table's width in the kernel's unit."""
    size = subject.facts.kernel_block_size
    if subject.batch is None or size is None:
        return lacks("facts.kernel_block_size")
    columns = subject.batch.block_table_tensor.shape[1]
    covered = columns * size * subject.facts.dcp_size
    longest = subject.batch.max_seq_len
    if covered >= longest:
        return FINE
    return (
        Breach(
            f"{subject.batch_name}.block_table_tensor",
            "the table is too narrow for the longest sequence",
            f"at least {-(-longest // (size * subject.facts.dcp_size))} columns   (max_seq_len={longest})",
            f"{columns} columns of {size} tokens",
            {"max_blocks": columns, "kernel_block_size": size},
        ),
    )


@clause(
    "MLA208",
    "There is a slot for every token of the batch.",
    invariant="C5",
    incident="vllm#34187",
    example="3 tokens, slot_mapping of 2",
    help="pad slot_mapping with -1 to the tokens of the op",
)
def check_slot_count(subject: StepContext) -> Found:
    """Check the length of the slot mappings of batch and metadata."""
    tokens = subject.num_tokens
    if tokens is None:
        return lacks("batch.num_actual_tokens")
    if subject.facts.compress_ratio > 1 and subject.is_indexer:
        return lacks("slots in tokens")
    for owner, name in ((subject.metadata, subject.name), (subject.batch, subject.batch_name)):
        slots = getattr(owner, "slot_mapping", None)
        if slots is not None and slots.shape[0] < tokens:
            path = f"{name}.slot_mapping"
            return (Breach(path, "fewer slots than tokens", f"at least {tokens}", str(slots.shape[0])),)
    return FINE


@clause(
    "MLA209",
    "A batch with any query longer than one token has host bounds of its sequence lengths.",
    invariant="C8",
    incident="vllm#44492",
    example="draft step q=[1,5], s=[9,5], seq_lens_cpu_upper_bound=None",
    help="set seq_lens_cpu_upper_bound wherever the batch is made, also for draft steps",
)
def check_upper_present(subject: StepContext) -> Found:
    """Check that the bound is there when the split will read it."""
    if subject.batch is None:
        return lacks("batch")
    if subject.batch.max_query_len <= 1 and not subject.num_prefills:
        return FINE
    if getattr(subject.batch, "seq_lens_cpu_upper_bound", None) is not None:
        return FINE
    path = f"{subject.batch_name}.seq_lens_cpu_upper_bound"
    return (Breach(path, "None although the batch may prefill or verify drafts", "int32[num_reqs] on cpu", "None"),)
