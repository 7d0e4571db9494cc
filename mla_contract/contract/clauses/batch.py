"""The common batch, as far as host integers and host copies decide it."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import (
    BATCH,
    CONTEXT_LENS,
    NUM_TOKENS,
    START_LOC,
    UPPER_LENS,
    Need,
    fact,
)
from mla_contract.contract.step.context import StepContext

FLAGS = Need("batch.is_prefilling", lambda step: step.is_prefilling is not None, of=BATCH)
SLOTS_IN_TOKENS = Need("slots in tokens", lambda step: step.facts.compress_ratio <= 1 or not step.is_indexer)


@clause(
    "MLA201",
    "Query offsets start at 0 and never fall.",
    needs=(START_LOC,),
    incident="vllm#34187",
    example="qsl=[0,4,2]",
    help="build query_start_loc as the prefix sum of the query lengths",
)
def check_start_loc_order(step: StepContext) -> Found:
    """Check ``query_start_loc_cpu`` by itself."""
    start_loc, lens = step.start_loc, step.query_lens
    if not len(start_loc):
        return (Breach(f"{step.batch_name}.query_start_loc_cpu", "offsets are empty", "at least one entry", "0"),)
    if start_loc[0] == 0 and step.min_query_len >= 0:
        return FINE
    row = int(np.argmax(lens < 0)) if start_loc[0] == 0 else 0
    got = f"{start_loc[row : row + 2].tolist()} at entry {row}"
    path = f"{step.batch_name}.query_start_loc_cpu"
    return (Breach(path, "offsets do not start at 0 or fall", "0, then a non-decreasing sequence", got),)


@clause(
    "MLA202",
    "The tokens reach the last query offset; those behind it pad the batch to a captured size and are no request's.",
    needs=(START_LOC, NUM_TOKENS),
    incident="vllm#34187 vllm#39277",
    example="num_reqs=2, num_actual_tokens=1, qsl=[0,1,2]",
    help="hand the builder requests and tokens of one padding; a padded batch repeats the last live offset",
)
def check_token_total(step: StepContext) -> Found:
    """Check the batch's total against its offsets.

    Source: vLLM 0.19 to 0.33, both runners: a step that replays a graph raises requests and tokens to its size.
    """
    start_loc, tokens = step.start_loc, step.num_tokens
    if int(start_loc[-1]) <= tokens:
        return FINE
    path = f"{step.batch_name}.num_actual_tokens"
    reqs = {"num_reqs": step.num_reqs or 0}
    return (Breach(path, "fewer tokens than the last offset", f"at least {start_loc[-1]}", str(tokens), reqs),)


@clause(
    "MLA203",
    "A padding request has no query token, or the uniform length of the padded batch.",
    needs=(CONTEXT_LENS,),
    incident="vllm#39277",
    example="live 1, bucket 4, qsl=[0,1,9,17,25], s=[5,0,0,0], max_query_len=2",
    help="repeat the last live offset in the padded tail at every step",
)
def check_padding_queries(step: StepContext) -> Found:
    """Check the query lengths of requests whose bound is 0."""
    lens, upper = step.query_lens, step.upper_lens
    if step.min_context_len >= 0 and step.min_query_len > 0:
        return FINE
    padding = lens[upper == 0]
    live = lens[upper > 0]
    uniform = int(live.max()) if len(live) else int(padding.max(initial=0))
    stale = padding[(padding != 0) & (padding != uniform)]
    if not len(stale):
        return FINE
    return (
        Breach(
            f"{step.batch_name}.query_start_loc_cpu",
            "padding requests have query tokens of an earlier step",
            f"0 or the uniform length {uniform}",
            f"lengths {stale[:4].tolist()} where seq_lens_cpu_upper_bound is 0",
            {"num_reqs": len(lens)},
        ),
    )


@clause(
    "MLA204",
    "A live request has at least as many tokens in its sequence as in its query.",
    needs=(CONTEXT_LENS,),
    incident="vllm#51593",
    example="q=[4], s=[3]",
    help="the bound counts cached and new tokens",
)
def check_upper_covers_query(step: StepContext) -> Found:
    """Check the host bound against the query lengths."""
    upper, context = step.upper_lens, step.context_lens
    if step.min_context_len >= 0:
        return FINE
    rows = np.flatnonzero((context < 0) & (upper != 0))
    if not len(rows):
        return FINE
    row = int(rows[0])
    return (
        Breach(
            f"{step.batch_name}.seq_lens_cpu_upper_bound",
            "a sequence is shorter than its own query",
            f"at least {upper[row] - context[row]} for request {row}",
            str(int(upper[row])),
        ),
    )


@clause(
    "MLA205",
    "max_query_len bounds every query.",
    needs=(START_LOC,),
    incident="vllm#39277",
    example="q=[1,8], max_query_len=2",
    help="recompute the maximum after padding",
)
def check_max_query_len(step: StepContext) -> Found:
    """Check the stated maximum of the batch."""
    stated = step.batch.max_query_len
    if step.max_query_len <= stated:
        return FINE
    path = f"{step.batch_name}.max_query_len"
    return (Breach(path, "a query is longer", f"at least {step.max_query_len}", str(stated)),)


@clause(
    "MLA206",
    "max_seq_len bounds the host bounds; where nothing is captured or drafted it is the largest of them.",
    needs=(UPPER_LENS,),
    incident="vllm#43991",
    example="s=[10], max_seq_len=8192 with one live column",
    help="take the maximum of seq_lens_cpu_upper_bound; the model's limit is for capture and drafts only",
)
def check_max_seq_len(step: StepContext) -> Found:
    """Check the stated longest sequence of the batch.

    Source: vLLM 0.32.0 v1/spec_decode/llm_base_proposer.py and v1/worker/gpu/spec_decode/speculator.py: the steps of a
        draft model state what their last step may reach, up to the model's limit.
    """
    stated, longest = step.batch.max_seq_len, step.max_upper_len
    exact = step.facts.capturing is False and step.facts.next_n == 1
    if stated == longest or (stated > longest and not exact):
        return FINE
    path, wanted = f"{step.batch_name}.max_seq_len", str(longest) if exact else f"at least {longest}"
    return (Breach(path, "longest sequence differs from the host bounds", wanted, str(stated)),)


@clause(
    "MLA207",
    "The block table's columns cover the longest sequence: columns times block size, times ranks.",
    needs=(BATCH, fact("kernel_block_size")),
    incident="vllm#54359 vllm#56380 vllm#45380",
    example="410 columns, page 32*4, max_seq_len=262144",
    help="build the table at the kernel's block size",
)
def check_table_width(step: StepContext) -> Found:
    """Check the table's width in the kernel's unit."""
    size = step.known.kernel_block_size
    columns = step.batch.block_table_tensor.shape[1]
    covered = columns * size * step.facts.dcp_size
    longest = step.batch.max_seq_len
    if covered >= longest:
        return FINE
    return (
        Breach(
            f"{step.batch_name}.block_table_tensor",
            "the table is too narrow for the longest sequence",
            f"at least {-(-longest // (size * step.facts.dcp_size))} columns   (max_seq_len={longest})",
            f"{columns} columns of {size} tokens",
            {"max_blocks": columns, "kernel_block_size": size},
        ),
    )


@clause(
    "MLA208",
    "There is a slot for every token of the batch.",
    needs=(NUM_TOKENS, SLOTS_IN_TOKENS),
    incident="vllm#34187",
    example="3 tokens, slot_mapping of 2",
    help="pad slot_mapping with -1 to the tokens of the op",
)
def check_slot_count(step: StepContext) -> Found:
    """Check the length of the slot mappings of batch and metadata."""
    tokens = step.num_tokens
    own, given = getattr(step.metadata, "slot_mapping", None), getattr(step.batch, "slot_mapping", None)
    for slots in (own, given) if own is not given else (own,):
        if slots is not None and slots.shape[0] < tokens:
            path = f"{step.name if slots is own else step.batch_name}.slot_mapping"
            return (Breach(path, "fewer slots than tokens", f"at least {tokens}", str(slots.shape[0])),)
    return FINE


@clause(
    "MLA209",
    "A batch with any query longer than one token has host bounds of its sequence lengths.",
    needs=(BATCH,),
    incident="vllm#44492",
    example="draft step q=[1,5], s=[9,5], seq_lens_cpu_upper_bound=None",
    help="set seq_lens_cpu_upper_bound wherever the batch is made, also for draft steps",
)
def check_upper_present(step: StepContext) -> Found:
    """Check that the bound is there when the split will read it."""
    if step.batch.max_query_len <= 1 and not step.num_prefills:
        return FINE
    if getattr(step.batch, "seq_lens_cpu_upper_bound", None) is not None:
        return FINE
    path = f"{step.batch_name}.seq_lens_cpu_upper_bound"
    return (Breach(path, "None although the batch may prefill or verify drafts", "int32[num_reqs] on cpu", "None"),)


@clause(
    "MLA210",
    "There is a prefilling flag for every request, or for every live one.",
    needs=(START_LOC, FLAGS),
    incident="vllm#32716",
    example="4 requests of which 3 are live, 2 flags",
    help="flag the live requests in their order; what is not flagged does not prefill",
)
def check_flags(step: StepContext) -> Found:
    """Check the length of the flags.

    Source: vLLM 0.32.0 v1/worker/gpu/model_runner.py flags live requests only, v1/worker/gpu_model_runner.py all.
    """
    flags, live = len(step.is_prefilling), int(np.count_nonzero(step.query_lens))
    if live <= flags <= len(step.query_lens):
        return FINE
    path, wanted = f"{step.batch_name}.is_prefilling", f"{live} to {len(step.query_lens)} flags"
    return (
        Breach(path, "flags are not those of the requests", wanted, str(flags), {"num_reqs": len(step.query_lens)}),
    )
