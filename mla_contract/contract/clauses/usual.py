"""The usual step, proven at once: few vector operations that decide many structural clauses together.

A proof is sufficient, not necessary: None says nothing, and the clauses are then asked one by one. A property test
holds that no clause objects to what is proven here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mla_contract.contract.schema.declaration import BackendDeclaration, Routing
from mla_contract.contract.step.facts import Facts
from mla_contract.contract.step.host import host_copy

PROVEN = frozenset(
    f"MLA{number}"
    for number in (*range(201, 210), *range(232, 235), 236, *range(241, 245), 249, 251, 252, 254, 261, 262)
)
"""Clauses that hold wherever ``prove_structure`` returns a step."""

PROVEN_IN_ORDER = frozenset({"MLA231", "MLA235", "MLA237"})
"""Clauses that hold besides where the step is ``in_order``."""

_PER_TOKEN = (("qo_indptr", 1), ("paged_kv_indptr", 1), ("paged_kv_last_page_len", 0), ("topk_indices", 0))
_RAMP = np.arange(8193, dtype=np.int32).tobytes()


def is_ramp(values: Any, size: int) -> bool:
    """Return whether an int32 array is 0, 1, 2, ... of this size; False also when it is longer than what is kept."""
    return size <= len(_RAMP) // 4 and bool(values.tobytes() == _RAMP[: 4 * size])


@dataclass(slots=True)
class Step:
    """What a proof has learnt: a batch of live requests only, all inside their host bounds.

    Attributes:
        start_loc: Host copy of the query offsets.
        upper: Host bounds of the sequence lengths.
        lens: Query lengths; None where each is 1.
        context: Bounds of the cached tokens; None where each query is 1.
        num_reqs: Requests.
        num_tokens: Tokens.
        num_decodes: Leading decodes.
        fewest: Fewest cached tokens of a request.
        longest: Longest sequence by the bounds.
        in_order: Whether classes follow from lengths alone, and stand in order around the split.
    """

    start_loc: Any
    upper: Any
    lens: Any
    context: Any
    num_reqs: int
    num_tokens: int
    num_decodes: int
    fewest: int
    longest: int
    in_order: bool = False


def prove_structure(
    metadata: Any, batch: Any, facts: Facts, declaration: BackendDeclaration | None, prefill: Any
) -> Step | None:
    """Return what is known of the step if every clause of ``PROVEN`` holds for MLA metadata, else None.

    Sync: none
    """
    try:
        step = _prove_batch(metadata, batch, facts)
        if step is None or not _prove_split(step, metadata, batch, facts, declaration, prefill):
            return None
        return step if _prove_record(step, metadata, facts, declaration, prefill) else None
    except Exception:  # noqa: BLE001 - the records are foreign; the clauses decide one by one
        return None


def _prove_batch(metadata: Any, batch: Any, facts: Facts) -> Step | None:
    """Prove the clauses of the batch: every request is live, and has its query inside its bound."""
    reqs, tokens, max_query, max_seq = batch.num_reqs, batch.num_actual_tokens, batch.max_query_len, batch.max_seq_len
    decodes = metadata.num_decodes
    if not (type(reqs) is type(tokens) is type(max_query) is type(max_seq) is type(decodes) is int) or reqs <= 0:
        return None
    start_loc, upper = host_copy(batch.query_start_loc_cpu), host_copy(batch.seq_lens_cpu_upper_bound)
    if start_loc is None or upper is None or start_loc.shape != (reqs + 1,) or upper.shape != (reqs,):
        return None
    if metadata.num_reqs != reqs or metadata.num_actual_tokens != tokens:
        return None
    if metadata.max_query_len != max_query or metadata.max_seq_len != max_seq:
        return None
    longest = upper.item(upper.argmax())
    if facts.capturing is False and longest != max_seq:
        return None
    size = facts.kernel_block_size
    if size is not None and batch.block_table_tensor.shape[1] * size * facts.dcp_size < max_seq:
        return None
    if reqs == tokens and is_ramp(start_loc, reqs + 1):
        fewest = upper.item(upper.argmin()) - 1
        fine = max_query >= 1
        lens = context = None
    elif start_loc.item(0) != 0 or start_loc.item(reqs) != tokens:
        return None
    else:
        lens = start_loc[1:] - start_loc[:-1]
        context = upper - lens
        fewest = context.item(context.argmin())
        fine = lens.item(lens.argmin()) > 0 and lens.item(lens.argmax()) <= max_query
    if not fine or fewest < 0:
        return None
    return Step(start_loc, upper, lens, context, reqs, tokens, decodes, fewest, longest)


def _prove_split(
    step: Step, metadata: Any, batch: Any, facts: Facts, declaration: BackendDeclaration | None, prefill: Any
) -> bool:
    """Prove order, sums, boundary and longest decode; prefills alone may be out of order here."""
    decodes, prefills, threshold = step.num_decodes, metadata.num_prefills, facts.decode_threshold
    tokens, stated = metadata.num_decode_tokens, getattr(metadata, "decode_max_query_len", None)
    if not (type(prefills) is type(tokens) is int) or decodes < 0 or prefills < 0:
        return False
    if decodes + prefills != step.num_reqs or step.start_loc.item(decodes) != tokens:
        return False
    lens, plain = step.lens, True
    own, rest = (None, None) if lens is None else (lens[:decodes], lens[decodes:])
    longest = min(decodes, 1) if own is None else own.item(own.argmax()) if decodes else 0
    all_decodes = declaration is not None and declaration.routing is Routing.ALL_DECODES
    if all_decodes:
        if prefills:
            return False
    elif (type(stated) is int and stated < longest) or (threshold is not None and longest > threshold):
        return False
    if facts.uniform_decodes and own is not None:
        plain = False
        if threshold is not None and decodes and not all_decodes and own.item(own.argmin()) != longest:
            return False
    if prefill is not None and not _prove_prefill(step, prefill, rest):
        return False
    if threshold is not None:
        shortest = threshold + 1 if not prefills else 1 if rest is None else rest.item(rest.argmin())
        plain = plain and longest <= threshold < shortest
    step.in_order = plain and step.fewest > 0 and batch.is_prefilling is None
    slots = batch.slot_mapping, metadata.slot_mapping
    return bool(slots[0].shape[0] >= step.num_tokens and (slots[1] is slots[0] or slots[1].shape[0] >= step.num_tokens))


def _prove_prefill(step: Step, prefill: Any, rest: Any) -> bool:
    """Prove the host lengths and the longest query of the prefill record."""
    if rest is None:
        rest = np.ones(step.num_reqs - step.num_decodes, np.int32)
    if not len(rest) or prefill.max_query_len < rest.item(rest.argmax()):
        return False
    own = host_copy(getattr(prefill, "query_lens_cpu", None))
    return own is None or (own.dtype == rest.dtype and own.tobytes() == rest.tobytes())


def _prove_record(
    step: Step, metadata: Any, facts: Facts, declaration: BackendDeclaration | None, prefill: Any
) -> bool:
    """Prove what the metadata repeats of its batch, which records it has, and the rows of its arrays."""
    decodes, prefills, decode = step.num_decodes, metadata.num_prefills, metadata.decode
    if (prefill is not None and not prefills) or (decode is not None and not decodes):
        return False
    if facts.topk_rank is not None and facts.topk_shape is not None and len(facts.topk_shape) != facts.topk_rank:
        return False
    if not hasattr(metadata, "topk_tokens"):
        dense = declaration is None or declaration.dense_prefill
        return not (decodes and decode is None) and not (prefills and dense and prefill is None)
    stated = getattr(metadata, "prefill_max_seq_len", None)
    if type(stated) is int and (prefill is not None or not prefills):
        upper = step.upper[decodes:]
        if stated != (upper.item(upper.argmax()) if prefills else 0):
            return False
    if prefill is not None and getattr(prefill, "use_dense_mha", None):
        denied = declaration is not None and declaration.dense_prefill is False
        if denied or facts.layer_allows_dense is False or facts.gather_reads_layout is False:
            return False
    elif facts.topk_skipped and prefills:
        return False
    handed = facts.query_rows
    allowed = (step.num_tokens, metadata.num_decode_tokens) if handed is None else (handed,)
    ids = getattr(metadata, "req_id_per_token", None)
    if ids is not None and ids.shape[0] not in allowed:
        return False
    for name, extra in _PER_TOKEN:
        array = getattr(metadata, name, None)
        if array is not None and array.shape[0] - extra not in allowed:
            return False
    return True
