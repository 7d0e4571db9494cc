"""Batches in the order and with the padding of vLLM's runners, by the runners' own order functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

CAPTURED = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""Sizes of captured graphs, in tokens."""
MOST_SEQS = 24
"""Requests that an engine takes at once: a mixed graph has no more padding requests."""


class Request(NamedTuple):
    """What the scheduler gave one request: new tokens, cached tokens, tokens of its prompt, drafts among the new."""

    scheduled: int
    computed: int
    prompt: int
    drafts: int = 0

    @property
    def is_prefilling(self) -> bool:
        """Whether the step still computes its prompt."""
        return self.computed < self.prompt


@dataclass(frozen=True)
class RunnerBatch:
    """One batch as a builder gets it.

    Attributes:
        start_loc: [num_reqs+1] int32, whose last offset repeats on padding requests.
        seq_lens: [num_reqs] int32, 0 on padding requests.
        num_tokens: Tokens, raised to the captured size where the batch is padded.
        flags: Whether a request still computes its prompt; the newer runner's have none for padding requests.
        max_query_len: Longest query.
        max_seq_len: Longest sequence, or a bound above it.
    """

    start_loc: np.ndarray[Any, Any]
    seq_lens: np.ndarray[Any, Any]
    num_tokens: int
    flags: np.ndarray[Any, Any]
    max_query_len: int
    max_seq_len: int

    def common(self) -> Any:
        """Return the engine's record of the batch."""
        import torch
        from vllm.v1.attention.backend import CommonAttentionMetadata

        start_loc, seq_lens = torch.from_numpy(self.start_loc), torch.from_numpy(self.seq_lens)
        return CommonAttentionMetadata(
            query_start_loc=start_loc,
            query_start_loc_cpu=start_loc,
            seq_lens=seq_lens,
            num_reqs=len(self.seq_lens),
            num_actual_tokens=self.num_tokens,
            max_query_len=self.max_query_len,
            max_seq_len=self.max_seq_len,
            block_table_tensor=torch.zeros(len(self.seq_lens), 64, dtype=torch.int32),
            slot_mapping=torch.full((self.num_tokens,), -1, dtype=torch.int64),
            seq_lens_cpu_upper_bound=seq_lens,
            is_prefilling=torch.from_numpy(self.flags),
        )


class _InputBatch:
    """The requests of the older runner, as its reordering reads and swaps them."""

    def __init__(self, requests: list[Request]) -> None:
        self.rows = list(requests)
        self.req_ids = [str(index) for index in range(len(requests))]
        self.num_scheduled_tokens = {str(index): one.scheduled for index, one in enumerate(requests)}
        self.num_computed_tokens_cpu = np.array([one.computed for one in requests])
        self.num_prompt_tokens = np.array([one.prompt for one in requests])

    def swap_states(self, one: int, other: int) -> None:
        """Swap two rows."""
        pair = [one, other]
        self.rows[one], self.rows[other] = self.rows[other], self.rows[one]
        self.req_ids[one], self.req_ids[other] = self.req_ids[other], self.req_ids[one]
        for array in (self.num_computed_tokens_cpu, self.num_prompt_tokens):
            array[pair] = array[pair[::-1]]


def draw_requests(rng: np.random.Generator, threshold: int) -> list[Request]:
    """Return the requests of one step, in the scheduler's order."""
    longest, decodes_only = int(rng.choice([8, 200, 3000])), rng.random() < 0.4
    requests = []
    for _ in range(int(rng.integers(1, 13))):
        computed, kind = (
            int(rng.integers(1, longest)),
            "decode" if decodes_only else rng.choice(["decode", "chunk", "new"]),
        )
        if kind == "decode":
            drafts = int(rng.integers(0, threshold)) if rng.random() < 0.5 else threshold - 1
            requests.append(Request(drafts + 1, computed, computed if rng.random() < 0.2 else 1, drafts))
        else:
            scheduled = int(rng.choice([1, threshold, int(rng.integers(1, 60))]))
            done = computed if kind == "chunk" else 0
            requests.append(Request(scheduled, done, done + scheduled + int(rng.integers(0, 50))))
    return requests


def older_order(requests: list[Request], threshold: int) -> list[Request]:
    """Return the requests as the older runner orders them."""
    from vllm.v1.attention.backends.utils import reorder_batch_to_split_decodes_and_prefills

    held = _InputBatch(requests)
    reorder_batch_to_split_decodes_and_prefills(held, held, threshold)
    return held.rows


def newer_order(requests: list[Request], decode_query_len: int) -> list[Request]:
    """Return the requests as the newer runner orders them."""
    from vllm.v1.worker.gpu.model_runner import sort_batch_req_ids

    drafts = {str(index): [7] * one.drafts for index, one in enumerate(requests)}
    tokens = {str(index): one.scheduled for index, one in enumerate(requests)}
    return [requests[int(name)] for name in sort_batch_req_ids(tokens, drafts, decode_query_len)]


def padded_batch(rows: list[Request], *, padded: bool, live_flags: bool, more_len: int = 0) -> RunnerBatch:
    """Return the batch of ordered requests, padded to a captured size or not.

    Args:
        rows: Requests in order.
        padded: Whether requests and tokens are raised to a captured size, as for a full graph.
        live_flags: Whether flags are given for live requests alone.
        more_len: Tokens by which the longest sequence is overstated.

    Source: vLLM 0.32.0 v1/worker/gpu_model_runner.py, _prepare_inputs and _build_attention_metadata;
        v1/worker/gpu/model_runner.py, prepare_inputs, and cudagraph_utils.py.
    """
    lens = [one.scheduled for one in rows]
    num_reqs, num_tokens = len(rows), sum(lens)
    size = next((one for one in CAPTURED if one >= num_tokens), None) if padded else None
    if size is not None:
        longest = max(lens)
        # A graph of decodes has as many requests as fit; a mixed one as many as the engine takes.
        uniform = set(lens) == {longest} and size % longest == 0
        num_reqs = max(num_reqs, size // longest if uniform else min(size, MOST_SEQS))
        num_tokens = size
    start_loc = np.full(num_reqs + 1, sum(lens), dtype=np.int32)
    start_loc[0], start_loc[1 : len(rows) + 1] = 0, np.cumsum(lens)
    totals = np.zeros(num_reqs, dtype=np.int32)
    totals[: len(rows)] = [one.scheduled + one.computed for one in rows]
    flags = np.zeros(len(rows) if live_flags else num_reqs, dtype=np.bool_)
    flags[: len(rows)] = [one.is_prefilling for one in rows]
    return RunnerBatch(start_loc, totals, num_tokens, flags, max(lens), int(totals.max()) + more_len)


def draw_batch(rng: np.random.Generator, threshold: int, *, newer: bool) -> RunnerBatch:
    """Return a random batch of one runner; sometimes another group's threshold ordered it."""
    requests = draw_requests(rng, threshold)
    ordered_by = threshold if rng.random() < 0.8 else int(rng.choice([1, 2, 4]))
    rows = (newer_order if newer else older_order)(requests, ordered_by)
    more = int(rng.choice([0, 0, 4]))
    return padded_batch(rows, padded=rng.random() < 0.5, live_flags=newer, more_len=more)


def interleaved(rng: np.random.Generator, threshold: int) -> RunnerBatch:
    """Return a batch in the scheduler's order, which no runner hands over."""
    return padded_batch(draw_requests(rng, threshold), padded=False, live_flags=False)
