"""The indexer's prefill chunks, as far as elements of device arrays decide them."""

from __future__ import annotations

import numpy as np

from mla_contract.contract.clauses.clause import FINE, Breach, Found, clause
from mla_contract.contract.clauses.indexer_chunk import ChunkRun, chunks_of, runs_of
from mla_contract.contract.clauses.need import BATCH, DCP, INDEXER_PREFILL, START_LOC, fact
from mla_contract.contract.clauses.owners import equal, repeats_rows
from mla_contract.contract.clauses.tables import compare_tables
from mla_contract.contract.step.context import Ints, StepContext
from mla_contract.contract.step.host import host, host_ints


def _known_runs(step: StepContext) -> list[ChunkRun]:
    """Return the runs whose requests are known."""
    facts = step.facts
    states_are_split = facts.dcp_size > 1 and facts.dcp_interleave % facts.compress_ratio > 0
    if facts.pcp_size > 1 or step.batch is None or states_are_split:
        return []
    return [run for run in runs_of(step) if run.first >= 0]


def _local(step: StepContext, states: Ints, rank: int | None = None) -> Ints:
    """Return the part of each number of states that a rank stores."""
    return step.facts.local_lens(states, rank, unit=step.facts.compress_ratio)


@clause(
    "MLA371",
    "A token sees the states from its request's first gathered row up to its own position.",
    level="values",
    needs=(INDEXER_PREFILL, BATCH, START_LOC),
    incident="vllm#51252 vllm#32175",
    example="c=8, q=2, ratio 1: ke-ks = [9,10]",
    help="ke - ks = (context + offset + 1) // ratio, localised under DCP",
)
def check_chunk_bounds(step: StepContext) -> Found:
    """Check ``cu_seqlen_ks`` and ``cu_seqlen_ke``."""
    chunks = chunks_of(step)
    ratio = step.facts.compress_ratio
    for run in _known_runs(step):
        requests = np.arange(run.first, run.last)
        queries, lens = step.device_query_lens[requests], step.seq_lens[requests]
        row_start = np.concatenate([[0], np.cumsum(_local(step, lens // ratio))])
        owner = np.repeat(np.arange(len(requests)), queries)
        token = run.start + np.arange(len(owner))
        offset = token - step.device_start_loc[requests[owner]]
        seen = _local(step, (lens[owner] - queries[owner] + offset + 1) // ratio)
        for index in run.chunks:
            chunk = chunks[index]
            cut = slice(chunk.token_start - run.start, chunk.token_end - run.start)
            for name, wanted in (
                ("cu_seqlen_ks", row_start[owner[cut]]),
                ("cu_seqlen_ke", row_start[owner[cut]] + seen[cut]),
            ):
                got = host_ints(getattr(chunk, name))
                if not equal(got, wanted):
                    at = int(np.argmax(got != wanted)) if len(got) == len(wanted) else 0
                    path = f"{step.name}.prefill.chunks[{index}].{name}"
                    text = f"{wanted[at]} at token {at}" if len(wanted) else "no token"
                    got_text = str(got[at]) if len(got) else "no entry"
                    axes = {"compress_ratio": ratio, "num_reqs": chunk.num_reqs}
                    return (Breach(path, "token sees other keys", text, got_text, axes),)
    return FINE


@clause(
    "MLA372",
    "The prefix sums and owners of gathered states follow the requests' states.",
    level="values",
    needs=(INDEXER_PREFILL, BATCH, START_LOC),
    incident="vllm#51252",
    example="states [4,3], cu_seq_lens=[0,4,8]",
    help="the host total must equal the device sum on prefill rows",
)
def check_chunk_offsets(step: StepContext) -> Found:
    """Check ``cu_seq_lens`` and ``token_to_seq``.

    Where drafts are verified, the host's total is a bound: it counts drafts that the device has rejected since.

    Source: vLLM 0.32.0 v1/worker/gpu/warmup.py, _warmup_kernels, and every asynchronous step after a rejection.
    """
    drafts = step.facts.next_n not in (None, 1)
    chunks = chunks_of(step)
    for run in _known_runs(step):
        states = step.seq_lens[run.first : run.last] // step.facts.compress_ratio
        for index in run.chunks:
            chunk, path = chunks[index], f"{step.name}.prefill.chunks[{index}]"
            wanted, got = np.concatenate([[0], np.cumsum(states)]), host_ints(chunk.cu_seq_lens)
            if not equal(got, wanted):
                return (Breach(f"{path}.cu_seq_lens", "not the sums of states", str(wanted[:5]), str(got[:5])),)
            if chunk.total_seq_lens < wanted[-1] or (not drafts and chunk.total_seq_lens != wanted[-1]):
                got_text = str(chunk.total_seq_lens)
                return (Breach(f"{path}.total_seq_lens", "host and device totals differ", str(wanted[-1]), got_text),)
            if chunk.skip_kv_gather:
                continue
            stated = host(chunk.token_to_seq)
            if not repeats_rows(stated[: wanted[-1]] if drafts else stated, states):
                text = f"{wanted[-1]} owners, in order"
                return (Breach(f"{path}.token_to_seq", "a state has another owner", text, str(stated[:5])),)
    return FINE


@clause(
    "MLA373",
    "A chunk's block table holds the rows of its requests.",
    level="values",
    needs=(INDEXER_PREFILL, BATCH, fact("kernel_block_size")),
    incident="vllm#48659",
    example="chunk of request 2, table row of request 1",
    help="slice the batch's table by the chunk's requests",
)
def check_chunk_table(step: StepContext) -> Found:
    """Check the rows of the chunk's block table on live columns."""
    chunks, size = chunks_of(step), step.known.kernel_block_size
    for run in _known_runs(step):
        table = host_ints(step.batch.block_table_tensor)[run.first : run.last]
        for index in run.chunks:
            path = f"{step.name}.prefill.chunks[{index}].block_table"
            own, lens = host_ints(chunks[index].block_table), step.seq_lens[run.first : run.last]
            found = compare_tables(path, own, table, lens, size * step.facts.dcp_size)
            if found:
                return found
    return FINE


@clause(
    "MLA374",
    "Under DCP the local prefix sums are this rank's part of each request.",
    level="values",
    needs=(INDEXER_PREFILL, BATCH, DCP),
    incident="vllm#50095 vllm#38416",
    example="dcp 2, states [5,4], rank 1: local sums [0,2,4]",
    help="localise each request's states, then sum",
)
def check_local_offsets(step: StepContext) -> Found:
    """Check ``local_cu_seq_lens`` and the local totals."""
    chunks, facts = chunks_of(step), step.facts
    for run in _known_runs(step):
        states = step.seq_lens[run.first : run.last] // facts.compress_ratio
        ranks = [_local(step, states, rank) for rank in range(facts.dcp_size)]
        wanted = np.concatenate([[0], np.cumsum(ranks[facts.dcp_rank])])
        widest = max(int(rank.sum()) for rank in ranks)
        for index in run.chunks:
            chunk, path = chunks[index], f"{step.name}.prefill.chunks[{index}]"
            if chunk.local_cu_seq_lens is None:
                return (Breach(f"{path}.local_cu_seq_lens", "no local sums under DCP", str(wanted[:5]), "None"),)
            got = host_ints(chunk.local_cu_seq_lens)
            if not equal(got, wanted):
                return (Breach(f"{path}.local_cu_seq_lens", "not this rank's part", str(wanted[:5]), str(got[:5])),)
            for name, value in (("local_total_seq_lens", wanted[-1]), ("max_local_total_seq_lens", widest)):
                if getattr(chunk, name) != value:
                    return (Breach(f"{path}.{name}", "local total is wrong", str(value), str(getattr(chunk, name))),)
    return FINE
