"""What every batch of a runner has, judged from its numbers alone: padding, order, flags.

It is held against the recorded batches, and the generators against it.
Source: vLLM 0.32.0 v1/worker/gpu_model_runner.py, v1/attention/backends/utils.py (the order of V1),
    v1/worker/gpu/model_runner.py (that of V2), v1/cudagraph_dispatcher.py and v1/worker/gpu/cudagraph_utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mla_contract.testing.random_batches import Draw, Runner
from mla_contract.testing.runner_batches import RunnerBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A batch's numbers, as far as padding and order go.

    Attributes:
        query_lens: New tokens of each request.
        seq_lens: Cached and new tokens of each, as the host knows them.
        num_tokens: Tokens, padding included.
        flags: Whether a request still computes its prompt; None where no one says.
        ordered_by: Longest query, in tokens, that is ordered as a decode.
        max_num_seqs: Requests of a step at most.
        newer: Whether the V2 runner ordered it.
        live_flags: Whether padding requests have no flag.
    """

    query_lens: Sequence[int]
    seq_lens: Sequence[int]
    num_tokens: int
    flags: Sequence[bool] | None
    ordered_by: int
    max_num_seqs: int
    newer: bool
    live_flags: bool


def numbers_of(batch: RunnerBatch) -> Numbers:
    """Return the numbers of a recorded batch."""
    return Numbers(
        query_lens=batch.query_lens,
        seq_lens=batch.seq_lens_cpu_upper_bound,
        num_tokens=batch.num_actual_tokens,
        flags=batch.is_prefilling,
        ordered_by=batch.ordered_by,
        max_num_seqs=batch.max_num_seqs,
        newer=batch.runner == "v2",
        # A drafter of the same runner gives every request one.
        live_flags=batch.runner == "v2" and batch.padding != "draft",
    )


def numbers_of_draw(draw: Draw) -> Numbers:
    """Return the numbers of a drawn batch, as its builder gets them."""
    shape, batch = draw.shape, draw.build()[0]
    return Numbers(
        query_lens=shape.query_lens.tolist(),
        seq_lens=shape.seq_lens.tolist(),
        num_tokens=shape.num_actual_tokens,
        flags=None if batch.is_prefilling is None else batch.is_prefilling.tolist(),
        ordered_by=draw.setup.config.decode_threshold,
        max_num_seqs=draw.max_num_seqs,
        newer=draw.runner is Runner.NEWER,
        live_flags=draw.runner is Runner.NEWER,
    )


def padding_faults(of: Numbers) -> list[str]:
    """Return what no runner pads so."""
    lens, found = list(of.query_lens), list[str]()
    live = len(lens)
    while live and lens[live - 1] == 0:
        live -= 1
    if 0 in lens[:live]:
        found.append("a request without tokens stands before one with tokens")
    if any(of.seq_lens[live:]):
        found.append("a padding request has a sequence")
    if any(total < query for query, total in zip(lens, of.seq_lens, strict=True)):
        found.append("a sequence is shorter than its query")
    if live < len(lens) or sum(lens) < of.num_tokens:
        queries = set(lens[:live])
        of_decodes = len(queries) == 1 and len(lens) * max(queries) == of.num_tokens
        of_tokens = len(lens) == min(of.num_tokens, of.max_num_seqs)
        if not of_decodes and not of_tokens:
            found.append(f"{len(lens)} requests in a graph of {of.num_tokens} tokens")
    if of.flags is not None and len(of.flags) != (live if of.live_flags else len(lens)):
        found.append(f"{len(of.flags)} flags of {live} live and {len(lens)} requests")
    return found


def order_faults(of: Numbers) -> list[str]:
    """Return pairs of neighbours that the runner does not leave so; padding is left out."""
    rows = [(query, total - query) for query, total in zip(of.query_lens, of.seq_lens, strict=True) if query]
    flags = of.flags if of.flags is not None else [context == 0 or query > of.ordered_by for query, context in rows]
    rank = _rank_of_newer if of.newer else _rank_of_older
    ranks = [rank(query, context, flag, of.ordered_by) for (query, context), flag in zip(rows, flags, strict=False)]
    return [f"{one} before {other}" for one, other in pairwise(ranks) if one > other]


def _rank_of_older(query: int, context: int, prefilling: bool, threshold: int) -> tuple[int, ...]:
    """Return the class of a row in V1: decode, short extend, long extend, fresh prompt."""
    if context == 0:
        return (3,)
    if query > threshold:
        return (2,)
    return (int(prefilling),)


def _rank_of_newer(query: int, context: int, prefilling: bool, decode_len: int) -> tuple[int, ...]:
    """Return the rank of a row in V2: drafts first, then the full decode length, then by length."""
    has_drafts = query > 1 and not prefilling
    return (int(not has_drafts), int(query != decode_len), query)
