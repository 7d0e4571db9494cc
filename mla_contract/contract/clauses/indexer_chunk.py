"""The indexer's prefill chunks, as far as host values decide them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.need import COUNTS, DCP, INDEXER_PREFILL, NUM_TOKENS, WHOLE_QUERIES, fact
from mla_contract.contract.step.context import StepContext


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """Consecutive chunks over one slice of requests: the first gathers keys, the others reuse them.

    Attributes:
        first: First request, in the batch's numbering.
        last: End of the requests.
        start: First token.
        end: End of the requests' tokens.
        chunks: Positions of the chunks in the list.
    """

    first: int
    last: int
    start: int
    end: int
    chunks: tuple[int, ...]


def chunks_of(step: StepContext) -> list[Any]:
    """Return the indexer's chunks."""
    chunks: list[Any] = step.prefill.chunks
    return chunks


def runs_of(step: StepContext) -> list[ChunkRun]:
    """Return the runs of chunks, by token ranges and the batch's host offsets."""
    chunks, start_loc = chunks_of(step), step.start_loc
    found: list[ChunkRun] = []
    if start_loc is None:
        return found
    first_of: dict[int, int] = {}
    for request in range(step.num_decodes or 0, len(start_loc) - 1):
        if start_loc[request + 1] > start_loc[request]:
            first_of.setdefault(int(start_loc[request]), request)
    for index, chunk in enumerate(chunks):
        run = found[-1] if found else None
        if run is not None and run.start < chunk.token_start < run.end:
            found[-1] = ChunkRun(run.first, run.last, run.start, run.end, (*run.chunks, index))
            continue
        first = first_of.get(chunk.token_start)
        if first is None:
            found.append(ChunkRun(-1, -1, chunk.token_start, chunk.token_end, (index,)))
            continue
        last = min(first + chunk.num_reqs, len(start_loc) - 1)
        found.append(ChunkRun(first, last, chunk.token_start, int(start_loc[last]), (index,)))
    return found


def _path(step: StepContext, index: int, name: str) -> str:
    return f"{step.name}.prefill.chunks[{index}].{name}"


def _states(step: StepContext, run: ChunkRun) -> int | None:
    """Return the states of a run's requests by the host bounds."""
    if step.upper_lens is None or run.first < 0:
        return None
    return int((step.upper_lens[run.first : run.last] // step.facts.compress_ratio).sum())


@clause(
    "MLA361",
    "Chunks tile the prefill tokens in order; only slices without any state are left out.",
    needs=(INDEXER_PREFILL, COUNTS, NUM_TOKENS),
    incident="vllm#34553 vllm#36178",
    example="NDT=1, T=9: chunks [1,4) and [5,9)",
    help="start each chunk where the last one ended",
)
def check_chunks_tile(step: StepContext) -> Found:
    """Check token ranges of the chunks."""
    chunks = chunks_of(step)
    decode_tokens, tokens = step.num_decode_tokens, step.num_tokens
    at = decode_tokens
    for index, chunk in enumerate(chunks):
        if chunk.token_start < at or chunk.token_end < chunk.token_start:
            got = f"[{chunk.token_start}, {chunk.token_end})"
            return (Breach(_path(step, index, "token_start"), "chunks overlap or fall", f"from {at}", got),)
        if chunk.token_start > at and not _stateless(step, at, chunk.token_start):
            got = f"tokens [{at}, {chunk.token_start}) are in no chunk"
            return (Breach(_path(step, index, "token_start"), "chunks leave a gap", f"from {at}", got),)
        at = chunk.token_end
    if at > tokens or (at < tokens and not _stateless(step, at, tokens)):
        path = f"{step.name}.prefill.chunks"
        return (Breach(path, "chunks do not end with the batch", f"{tokens}", str(at), {"num_actual_tokens": tokens}),)
    return FINE


def _stateless(step: StepContext, start: int, end: int) -> bool:
    """Return whether the requests of tokens [start, end) have no state, or no real token."""
    start_loc, upper = step.start_loc, step.upper_lens
    if start_loc is None or upper is None:
        return step.facts.compress_ratio > 1
    return all(
        upper[request] // step.facts.compress_ratio == 0
        for request in range(len(upper))
        if start_loc[request] < end and start_loc[request + 1] > start
    )


@clause(
    "MLA362",
    "A chunk skips the gather exactly when it is a later slice of the previous chunk's requests.",
    needs=(INDEXER_PREFILL, WHOLE_QUERIES),
    incident="vllm#40018 vllm#36178",
    example="first chunk with skip_kv_gather=True",
    help="gather in the first chunk of a run only; a consumer must honour the flag",
)
def check_skip_gather(step: StepContext) -> Found:
    """Check the flag of every chunk."""
    chunks = chunks_of(step)
    if chunks and chunks[0].skip_kv_gather:
        return (Breach(_path(step, 0, "skip_kv_gather"), "the first chunk reuses nothing", "False", "True"),)
    for index in range(1, len(chunks)):
        own, previous = chunks[index], chunks[index - 1]
        same = own.num_reqs == previous.num_reqs and own.total_seq_lens == previous.total_seq_lens
        if own.skip_kv_gather and not same:
            path = _path(step, index, "skip_kv_gather")
            return (Breach(path, "reuses keys of other requests", "False", "True"),)
    for run in runs_of(step):
        for place, index in enumerate(run.chunks):
            if bool(chunks[index].skip_kv_gather) != (place > 0):
                path = _path(step, index, "skip_kv_gather")
                why = "a later slice of one run gathers again" if place else "a new run reuses other keys"
                return (Breach(path, why, str(place > 0), str(chunks[index].skip_kv_gather)),)
    return FINE


@clause(
    "MLA363",
    "The states of a chunk are those of its requests, and fit the consumer's buffer, also for one long request.",
    needs=(INDEXER_PREFILL, WHOLE_QUERIES),
    incident="vllm#51252 vllm#55222",
    example="ws 40 tokens, ratio 4, 6 rows of 2 states: 12 rows, 10 available",
    help="divide lengths, budget and buffer by the compress ratio alike",
)
def check_chunk_states(step: StepContext) -> Found:
    """Check ``total_seq_lens`` of every chunk."""
    chunks, rows = chunks_of(step), step.facts.indexer_rows
    axes = {"compress_ratio": step.facts.compress_ratio}
    if rows is not None:
        for index, chunk in enumerate(chunks):
            if chunk.total_seq_lens > rows:
                path, got = _path(step, index, "total_seq_lens"), str(chunk.total_seq_lens)
                return (Breach(path, "states exceed the gather buffer", f"at most {rows}", got, axes),)
    for run in runs_of(step):
        wanted = _states(step, run)
        for index in run.chunks:
            got = chunks[index].total_seq_lens
            if wanted is not None and got != wanted:
                path = _path(step, index, "total_seq_lens")
                return (Breach(path, "not the states of its requests", str(wanted), str(got), axes),)
    return FINE


@clause(
    "MLA364",
    "The logits of a chunk fit their budget, unless it has one query row.",
    needs=(INDEXER_PREFILL, fact("logits_budget_bytes")),
    incident="vllm#36178 vllm#34553 vllm#35488",
    example="M=8192, N=300000: 9.2 GiB of fp32, budget 512 MiB",
    help="bound query rows times states, not states alone",
)
def check_logits_budget(step: StepContext) -> Found:
    """Check query rows times states times 4 bytes."""
    chunks, budget = chunks_of(step), step.known.logits_budget_bytes
    for index, chunk in enumerate(chunks):
        rows = chunk.token_end - chunk.token_start
        used = rows * chunk.total_seq_lens * 4
        if rows > 1 and used > budget:
            axes = {"query_rows": rows, "total_seq_lens": chunk.total_seq_lens}
            path = _path(step, index, "token_end")
            return (Breach(path, "logits exceed their budget", f"at most {budget} bytes", f"{used} bytes", axes),)
    return FINE


@clause(
    "MLA365",
    "The arrays of a chunk have a row for each of its tokens or requests.",
    needs=(INDEXER_PREFILL,),
    incident="vllm#39542",
    example="tokens [1,5), cu_seqlen_ks of 3",
    help="cut every array by the chunk's own token and request range",
)
def check_chunk_rows(step: StepContext) -> Found:
    """Check the arrays of every chunk against its ranges."""
    chunks = chunks_of(step)
    found = []
    for index, chunk in enumerate(chunks):
        tokens = chunk.token_end - chunk.token_start
        for name, wanted in (
            ("block_table", chunk.num_reqs),
            ("cu_seqlen_ks", tokens),
            ("cu_seqlen_ke", tokens),
            ("cu_seq_lens", chunk.num_reqs + 1),
        ):
            got = getattr(chunk, name).shape[0]
            if got != wanted:
                axes = {"num_reqs": chunk.num_reqs, "chunk_tokens": tokens}
                found.append(Breach(_path(step, index, name), "wrong number of rows", str(wanted), str(got), axes))
    return tuple(found)


@clause(
    "MLA366",
    "Under DCP the widest rank bounds this rank's states, and all ranks together hold the chunk's.",
    needs=(INDEXER_PREFILL, DCP, WHOLE_QUERIES),
    incident="vllm#50095",
    example="dcp 2, total 9, max_local 4",
    help="take the maximum over ranks for the width of the collective",
)
def check_local_totals(step: StepContext) -> Found:
    """Check the local totals of every chunk."""
    chunks, size = chunks_of(step), step.facts.dcp_size
    for index, chunk in enumerate(chunks):
        own, widest, total = chunk.local_total_seq_lens, chunk.max_local_total_seq_lens, chunk.total_seq_lens
        # With verified drafts the total is a bound: it counts what the device has rejected since.
        bounded = step.facts.next_n not in (None, 1)
        if own > widest or (widest * size < total and not bounded) or own > total:
            axes = {"dcp_size": size, "total_seq_lens": total}
            path = _path(step, index, "max_local_total_seq_lens")
            wanted = f"at least {max(own, -(-total // size))}"
            return (Breach(path, "collective is too narrow", wanted, str(widest), axes),)
    return FINE
