"""Routing: the rows that metadata describes are the rows of q that the kernel gets."""

from __future__ import annotations

from typing import Any

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import ALL_DECODES, BATCH, COUNTS, MLA, NUM_TOKENS, SPARSE, Need, fact
from mla_contract.contract.clauses.owners import repeats_rows
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.host import host

REQUEST_IDS = Need(
    "metadata.req_id_per_token", lambda step: getattr(step.metadata, "req_id_per_token", None) is not None
)

_PER_ROW = (
    ("req_id_per_token", 0),
    ("qo_indptr", 1),
    ("paged_kv_indptr", 1),
    ("paged_kv_last_page_len", 0),
    ("topk_indices", 0),
)


@clause(
    "MLA251",
    "Every array with a row for each token has the rows that the decode kernel is handed; offsets have one more.",
    needs=(SPARSE, COUNTS, NUM_TOKENS),
    incident="vllm#48642 vllm#48611 ATOM#1595",
    example="q=[1,64], s=[100,64], dense split: 65 request ids, 1 row of q",
    help="cut per-token arrays to num_decode_tokens while dense prefill is active, else to all tokens",
)
def check_kernel_rows(step: StepContext) -> Found:
    """Check per-token arrays against the rows of q."""
    total, decode = step.num_tokens, step.num_decode_tokens
    handed, record = step.facts.query_rows, step.metadata
    allowed: tuple[Any, ...] = (handed,) if handed is not None else (total, decode)
    if handed is None and step.start_loc is not None:
        # A record may leave out the rows that pad the batch: what it describes then ends with the last query.
        allowed += (int(step.start_loc[-1]), *step.start_loc[step.num_decodes : step.num_decodes + 1].tolist())
    found = []
    for name, extra in _PER_ROW:
        array = getattr(record, name, None)
        if array is not None and array.shape[0] - extra not in allowed:
            wanted = " or ".join(str(rows + extra) for rows in dict.fromkeys(allowed))
            axes = {"num_actual_tokens": total, "num_decode_tokens": decode}
            message = "rows differ from the rows of q"
            found.append(Breach(f"{step.name}.{name}", message, wanted, str(array.shape[0]), axes))
    return tuple(found)


@clause(
    "MLA252",
    "A backend that declares all tokens decodes says so in every count.",
    needs=(MLA, ALL_DECODES),
    incident="vllm#52066 vllm#48722",
    example="declared all_decodes, q=[1,5], ND=1, NP=1",
    help="set num_decodes=num_reqs, num_prefills=0, num_decode_tokens=num_actual_tokens",
)
def check_all_decodes(step: StepContext) -> Found:
    """Check the counts of a backend without prefill path."""
    wanted = {
        "num_decodes": step.num_reqs,
        "num_prefills": 0,
        "num_decode_tokens": step.num_tokens,
    }
    return tuple(
        Breach(f"{step.name}.{name}", "not all tokens are decodes", str(value), str(getattr(step.metadata, name)))
        for name, value in wanted.items()
        if value is not None and getattr(step.metadata, name) != value
    )


@clause(
    "MLA253",
    "A token's request id is the request that its position in the batch belongs to; padding tokens own row 0.",
    level="values",
    needs=(BATCH, REQUEST_IDS),
    incident="vllm#48642 vllm#57388",
    example="q=[2,1], req_id_per_token=[0,1,1]",
    help="repeat request ids by the query lengths of this step, and clear the tail",
)
def check_request_ids(step: StepContext) -> Found:
    """Check the owners of tokens, which also bounds them by the block table's rows."""
    ids = getattr(step.metadata, "req_id_per_token", None)
    stated = host(ids)
    path = f"{step.name}.req_id_per_token"
    if len(stated) == step.device_start_loc[-1] and repeats_rows(stated, step.device_query_lens):
        return FINE
    owner = step.owners[: len(stated)]
    wrong = stated[: len(owner)] != owner
    if np.count_nonzero(wrong):
        token = int(np.argmax(wrong))
        got = f"{stated[token]} at token {token}"
        return (Breach(path, "token belongs to another request", str(owner[token]), got),)
    tail = stated[len(owner) :]
    if not len(tail) or not tail.any():
        return FINE
    got = f"{tail[tail != 0][0]}"
    return (Breach(path, "a padding token owns a live request", "0", got),)


@clause(
    "MLA254",
    "The top-k index array has the axes that the kernel declares.",
    needs=(fact("topk_rank"), fact("topk_shape")),
    incident="vllm#57388",
    example="topk indices of 2 axes, kernel wants 3",
    help="reshape where the kernel is called",
)
def check_topk_rank(step: StepContext) -> Found:
    """Check the rank of the top-k indices."""
    rank, shape = step.known.topk_rank, step.known.topk_shape
    if len(shape) == rank:
        return FINE
    return (Breach(f"{step.name}.topk_indices", "wrong number of axes", f"{rank} axes", str(list(shape))),)
