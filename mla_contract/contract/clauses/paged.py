"""The paged tables of aiter's sparse path, where a row is a token and a page is a token."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.decode import compare_rows, row_readings
from mla_contract.contract.clauses.need import ANY_DECODE, BATCH, COUNTS, SPARSE, Need, fact
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.host import host_ints

PAGED = Need("aiter metadata", lambda step: getattr(step.metadata, "paged_kv_indptr", None) is not None, of=SPARSE)
WORK_POINTERS = Need("metadata.work_meta_data", lambda step: hasattr(step.metadata, "work_meta_data"), of=SPARSE)
DECODE_PAGES = Need(
    "metadata.decode.paged_kv_indptr",
    lambda step: getattr(step.decode, "paged_kv_indptr", None) is not None,
    of=ANY_DECODE,
)

_WORK = (
    "work_meta_data",
    "work_indptr",
    "work_info_set",
    "reduce_indptr",
    "reduce_final_map",
    "reduce_partial_map",
)


@clause(
    "MLA381",
    "The paged tables are set together, and the indices have room for every row's top-k.",
    needs=(PAGED,),
    incident="ATOM#1595 sglang#16531",
    example="2 rows, topk 2048, 4095 indices",
    help="slice all four tables by the same count of rows",
)
def check_paged_capacity(step: StepContext) -> Found:
    """Check that no table is missing or too short."""
    rows, found = step.metadata.paged_kv_indptr.shape[0] - 1, []
    for name in ("qo_indptr", "paged_kv_indices", "paged_kv_last_page_len"):
        if getattr(step.metadata, name, None) is None:
            found.append(Breach(f"{step.name}.{name}", "one paged table of four is missing", "an array", "None"))
    indices = getattr(step.metadata, "paged_kv_indices", None)
    needed = rows * step.metadata.topk_tokens
    if indices is not None and indices.shape[0] < needed:
        axes = {"num_kernel_rows": rows, "topk_tokens": step.metadata.topk_tokens}
        got = str(indices.shape[0])
        found.append(Breach(f"{step.name}.paged_kv_indices", "too few entries", f"at least {needed}", got, axes))
    return tuple(found)


@clause(
    "MLA382",
    "The six arrays of the persistent work plan are all set, or none is.",
    needs=(SPARSE, WORK_POINTERS),
    incident="vllm#47042 vllm#46997",
    example="work_indptr set, reduce_indptr None",
    help="set them in one place",
)
def check_work_complete(step: StepContext) -> Found:
    """Check that the work plan is not set in part."""
    there = [name for name in _WORK if getattr(step.metadata, name, None) is not None]
    if len(there) in (0, len(_WORK)):
        return FINE
    absent = next(name for name in _WORK if name not in there)
    got = f"{len(there)} of {len(_WORK)} set"
    return (Breach(f"{step.name}.{absent}", "the work plan is set in part", "all six, or none", got),)


@clause(
    "MLA383",
    "A row's offsets hold its selected keys: min(position + 1, topk); padding repeats the last offset.",
    level="values",
    needs=(PAGED, BATCH),
    incident="vllm#47766 sglang#16531 ATOM#1595",
    example="topk 4, ctx 0, q=2: offsets [0,1,3]",
    help="sum min(position + 1, topk) over the rows of this step; rewrite the tail",
)
def check_paged_offsets(step: StepContext) -> Found:
    """Check ``paged_kv_indptr``, ``qo_indptr`` and the last page lengths."""
    got = host_ints(step.metadata.paged_kv_indptr)
    rows, topk = len(got) - 1, step.metadata.topk_tokens
    queries, lens = step.device_query_lens, step.seq_lens
    owner = np.repeat(np.arange(len(lens)), queries)[:rows]
    seen = lens[owner] - queries[owner] + np.arange(len(owner)) - step.device_start_loc[owner] + 1
    counts = np.concatenate([np.clip(seen, 0, topk), np.zeros(rows - len(owner), np.int64)])
    wanted = np.concatenate([[0], np.cumsum(counts)])
    axes = {"num_kernel_rows": rows, "topk_tokens": topk}
    if not np.array_equal(got, wanted):
        row = int(np.argmax(got != wanted))
        path, text = f"{step.name}.paged_kv_indptr", f"{wanted[row]} at entry {row}"
        return (Breach(path, "offset is not the sum of selected keys", text, str(got[row]), axes),)
    for name, right in (("qo_indptr", np.arange(rows + 1)), ("paged_kv_last_page_len", np.ones(rows, np.int64))):
        array = getattr(step.metadata, name, None)
        if array is None:
            continue
        own = host_ints(array)
        if not np.array_equal(own, right):
            row = int(np.argmax(own != right)) if len(own) == len(right) else 0
            text = f"{right[row]} at entry {row}"
            return (Breach(f"{step.name}.{name}", "a row is one token", text, str(own[row]), axes),)
    return FINE


@clause(
    "MLA384",
    "A paged decode table: pages = ceil(len / page), last page = (len - 1) % page + 1, no page for an empty row.",
    level="values",
    needs=(BATCH, COUNTS, DECODE_PAGES, fact("kernel_block_size")),
    incident="sglang#16531",
    example="page 64, s=[65]: last_page_len 1, indptr [0,2]",
    help="hand the kernel's page size to the metadata call",
)
def check_decode_pages(step: StepContext) -> Found:
    """Check the paged tables of a dense decode record that has them."""
    indptr = getattr(step.decode, "paged_kv_indptr", None)
    page = step.known.kernel_block_size
    got = host_ints(indptr)
    readings = row_readings(step, len(got) - 1)
    path = f"{step.name}.decode"
    pages = [np.concatenate([[0], np.cumsum(-(-lens // page))]) for lens in readings]
    fitting = [lens for lens, wanted in zip(readings, pages, strict=True) if np.array_equal(got, wanted)]
    if not fitting:
        return (Breach(f"{path}.paged_kv_indptr", "not the pages of the rows", str(pages[0][:5]), str(got[:5])),)
    last = getattr(step.decode, "paged_kv_last_page_len", None)
    if last is None:
        return FINE
    own = host_ints(last)
    rests = [np.where(lens > 0, (lens - 1) % page + 1, own) for lens in fitting]
    return compare_rows(f"{path}.paged_kv_last_page_len", "not the rest of the last page", own, rests)
