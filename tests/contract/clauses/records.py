"""A factory that fills the shipped records consistently from query and sequence lengths.

Every number is derived: offsets from lengths, slots from the block table, chunks from context lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mla_contract.contract.step.facts import Facts
from mla_contract.testing.records import (
    PlainAiter,
    PlainBatch,
    PlainChunkedContext,
    PlainContextChunk,
    PlainDecode,
    PlainDense,
    PlainFieldContext,
    PlainIndexer,
    PlainIndexerChunk,
    PlainIndexerDecode,
    PlainIndexerPrefill,
    PlainPrefill,
    PlainSparse,
)

BLOCK = 4
TOPK = 8


def local_len(facts: Facts, length: int, rank: int | None = None) -> int:
    """Return how many of ``length`` leading tokens a rank stores."""
    return int(facts.local_lens(np.array(length), rank))


def ints(values: Sequence[Any] | Tensor) -> Tensor:
    """Return an int32 tensor on the host."""
    return torch.as_tensor(values, dtype=torch.int32)


def batch(
    queries: Sequence[int],
    lens: Sequence[int],
    *,
    facts: Facts | None = None,
    block: int = BLOCK,
    prefilling: Sequence[bool] | None = None,
) -> PlainBatch:
    """Return the batch of these query and sequence lengths; request r owns the blocks from r * columns + 1 on."""
    facts = facts or Facts()
    start_loc = [0]
    for length in queries:
        start_loc.append(start_loc[-1] + length)
    longest = max(lens, default=0)
    columns = max(-(-facts.padded_rows(longest) // block), 1)
    table = torch.zeros(len(lens), columns, dtype=torch.int32)
    slots, positions = [], []
    for row, (length, total) in enumerate(zip(queries, lens, strict=True)):
        if total:
            table[row] = row * columns + 1 + torch.arange(columns)
        for position in range(total - length, total) if total else [0] * length:
            positions.append(position)
            turn, rest = divmod(position, facts.virtual_block)
            local = turn * facts.dcp_interleave + rest % facts.dcp_interleave
            mine = bool(total) and rest // facts.dcp_interleave == facts.dcp_rank
            slots.append(int(table[row, local // block]) * block + local % block if mine else -1)
    return PlainBatch(
        query_start_loc=ints(start_loc),
        query_start_loc_cpu=ints(start_loc),
        seq_lens=ints(lens),
        num_reqs=len(lens),
        num_actual_tokens=start_loc[-1],
        max_query_len=max(queries, default=0),
        max_seq_len=longest,
        block_table_tensor=table,
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        dcp_local_seq_lens=ints(facts.local_lens(np.asarray(lens, np.int64)).tolist()) if facts.dcp_size > 1 else None,
        positions=torch.tensor(positions, dtype=torch.int64),
        is_prefilling=None if prefilling is None else torch.tensor(prefilling),
        seq_lens_cpu_upper_bound=ints(lens),
    )


def chunked_context(
    of: PlainBatch, first: int, workspace_rows: int, facts: Facts, *, split: int | None = None
) -> PlainChunkedContext | None:
    """Return the context plan of the requests from ``first`` on: one request a chunk, split at ``split`` tokens."""
    queries = torch.diff(of.query_start_loc_cpu)[first:].tolist()
    context = [int(total) - query for total, query in zip(of.seq_lens[first:].tolist(), queries, strict=True)]
    if max(context, default=0) <= 0:
        return None
    offsets = [0]
    for query in queries:
        offsets.append(offsets[-1] + query)
    chunks: list[PlainContextChunk] = []
    step = split or workspace_rows
    for row, total in enumerate(context):
        for start in range(0, total, step):
            length = min(step, total - start)
            local = facts.padded_rows(start + length) - facts.padded_rows(start)
            chunk = PlainContextChunk(
                index=len(chunks),
                request_slice=slice(row, row + 1),
                token_slice=slice(offsets[row], offsets[row + 1]),
                continuation_token_end=offsets[row + 1],
                is_continuation=start > 0,
                num_context_tokens=length,
                query_start_loc=ints([0, queries[row]]),
                max_query_len=queries[row],
                cu_seq_lens=ints([0, length]),
                starts=ints([facts.padded_rows(start)]),
                max_seq_len=length,
                seq_lens=ints([length]),
                token_to_seq=torch.zeros(length, dtype=torch.int32),
                all_rows_active=queries[row] > 0,
                num_local_context_tokens=local,
            )
            if facts.dcp_size > 1:
                chunk.padded_local_seq_lens = [local]
                ranks = range(facts.dcp_size)
                chunk.local_context_lens_allranks = [[local_len(facts, total, rank) for rank in ranks]]
                chunk.padded_local_cu_seq_lens = ints([0, local])
                chunk.padded_local_token_to_seq = torch.zeros(local, dtype=torch.int32)
                chunk.local_starts = [facts.padded_rows(start)]
            chunks.append(chunk)
    return PlainChunkedContext(
        context_lens=ints(context),
        workspace=torch.zeros(workspace_rows, 2),
        chunks=chunks,
        context_lens_list=context,
        empty_token_slices=[slice(offsets[row], offsets[row + 1]) for row, own in enumerate(context) if not own],
    )


def field_context(of: PlainBatch, first: int, chunk: int) -> PlainFieldContext:
    """Return the plan in the shape up to 0.27: every prefill in every chunk of ``chunk`` tokens."""
    context = (of.seq_lens - torch.diff(of.query_start_loc_cpu))[first:].tolist()
    rounds = -(-max(context) // chunk)
    lens = [[min(max(total - chunk * index, 0), chunk) for total in context] for index in range(rounds)]
    totals = [sum(row) for row in lens]
    cu = [[sum(row[:upto]) for upto in range(len(row) + 1)] for row in lens]
    owners = torch.zeros(rounds, max(totals), dtype=torch.int32)
    for index, row in enumerate(lens):
        owners[index, : totals[index]] = torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row))
    return PlainFieldContext(
        cu_seq_lens=ints(cu),
        starts=ints([[chunk * index] * len(context) for index in range(rounds)]),
        seq_tot=totals,
        max_seq_lens=[max(row) for row in lens],
        seq_lens=ints(lens),
        workspace=torch.zeros(chunk * len(context), 2),
        token_to_seq=owners,
        chunk_total_token=totals,
        has_empty_context=[0 in row for row in lens],
    )


def prefill(of: PlainBatch, decodes: int, facts: Facts, *, split: int | None = None) -> PlainPrefill | None:
    """Return the prefill record of the requests behind the decodes."""
    if decodes == of.num_reqs:
        return None
    queries = torch.diff(of.query_start_loc_cpu)[decodes:]
    return PlainPrefill(
        block_table=of.block_table_tensor[decodes:],
        query_start_loc=of.query_start_loc[decodes:] - of.query_start_loc[decodes],
        max_query_len=int(queries.max()),
        chunked_context=chunked_context(of, decodes, facts.context_rows or 64, facts, split=split),
        query_lens_cpu=queries,
    )


def _common(of: PlainBatch, decodes: int) -> dict[str, Any]:
    return {
        "num_reqs": of.num_reqs,
        "max_query_len": of.max_query_len,
        "max_seq_len": of.max_seq_len,
        "num_actual_tokens": of.num_actual_tokens,
        "query_start_loc": of.query_start_loc,
        "slot_mapping": of.slot_mapping,
        "num_decodes": decodes,
        "num_decode_tokens": int(of.query_start_loc_cpu[decodes]),
        "num_prefills": of.num_reqs - decodes,
    }


def dense(of: PlainBatch, decodes: int, facts: Facts | None = None, *, split: int | None = None) -> PlainDense:
    """Return dense metadata with ``decodes`` leading decodes."""
    facts = facts or Facts()
    decode = None
    if decodes:
        own = of.seq_lens[:decodes]
        local = ints([local_len(facts, length) for length in own.tolist()]) if facts.dcp_size > 1 else own
        decode = PlainDecode(of.block_table_tensor[:decodes], local, own if facts.dcp_size > 1 else None)
    return PlainDense(**_common(of, decodes), prefill=prefill(of, decodes, facts, split=split), decode=decode)


def _sparse_fields(of: PlainBatch, decodes: int, facts: Facts, topk: int = TOPK) -> dict[str, Any]:
    queries = torch.diff(of.query_start_loc_cpu)
    record = prefill(of, decodes, facts)
    owners = torch.repeat_interleave(torch.arange(of.num_reqs, dtype=torch.int32), queries.long())
    return _common(of, decodes) | {
        "prefill": record,
        "decode": None,
        "block_table": of.block_table_tensor,
        "req_id_per_token": owners[: of.num_actual_tokens],
        "seq_lens": of.seq_lens,
        "block_size": facts.kernel_block_size or BLOCK,
        "topk_tokens": topk,
        "decode_max_query_len": int(queries[:decodes].max()) if decodes else 0,
        "prefill_max_seq_len": int(of.seq_lens[decodes:].max()) if record is not None else 0,
    }


def sparse(of: PlainBatch, decodes: int, facts: Facts | None = None) -> PlainSparse:
    """Return sparse metadata."""
    return PlainSparse(**_sparse_fields(of, decodes, facts or Facts()))


def aiter(of: PlainBatch, decodes: int, facts: Facts | None = None, *, topk: int = TOPK) -> PlainAiter:
    """Return sparse metadata with aiter's tables: every token is a row."""
    rows = of.num_actual_tokens
    assert of.positions is not None
    counts = torch.clamp(of.positions + 1, max=topk)
    return PlainAiter(
        **_sparse_fields(of, decodes, facts or Facts(), topk),
        qo_indptr=torch.arange(rows + 1, dtype=torch.int32),
        paged_kv_last_page_len=torch.ones(rows, dtype=torch.int32),
        paged_kv_indices=torch.zeros(rows * topk, dtype=torch.int32),
        paged_kv_indptr=ints([0, *torch.cumsum(counts, 0).tolist()]),
        attn_out_dtype=torch.bfloat16,
    )


def indexer(of: PlainBatch, decodes: int, facts: Facts | None = None, *, cuts: Sequence[int] = ()) -> PlainIndexer:
    """Return the indexer's record: native decode, one prefill run cut behind ``cuts`` of its tokens."""
    facts = facts or Facts()
    tokens = int(of.query_start_loc_cpu[decodes])
    queries = torch.diff(of.query_start_loc_cpu)[:decodes]
    chunked = decodes < of.num_reqs
    return PlainIndexer(
        seq_lens=of.seq_lens,
        max_seq_len=of.max_seq_len,
        slot_mapping=of.slot_mapping,
        num_decodes=decodes,
        num_decode_tokens=tokens,
        num_prefills=of.num_reqs - decodes,
        num_prefill_tokens=of.num_actual_tokens - tokens,
        decode=_indexer_decode(of, queries, facts) if decodes else None,
        prefill=PlainIndexerPrefill(_indexer_chunks(of, decodes, facts, cuts)) if chunked else None,
    )


def _indexer_decode(of: PlainBatch, queries: Tensor, facts: Facts) -> PlainIndexerDecode:
    width = int(queries.max())
    lens = of.seq_lens[: len(queries), None] - width + 1 + torch.arange(width)
    lens = ints(lens.clamp(min=0))
    own = lens
    if facts.dcp_size > 1:
        own = ints([[local_len(facts, length) for length in row] for row in lens.tolist()])
    return PlainIndexerDecode(
        block_table=of.block_table_tensor[: len(queries)],
        seq_lens=own // facts.compress_ratio,
        decode_lens=queries,
        requires_padding=bool((queries != width).any()),
        schedule_metadata=torch.zeros(3, 2, dtype=torch.int32),
        global_seq_lens=lens if facts.dcp_size > 1 else None,
    )


def _indexer_chunks(of: PlainBatch, decodes: int, facts: Facts, cuts: Sequence[int]) -> list[PlainIndexerChunk]:
    first = int(of.query_start_loc_cpu[decodes])
    states = (of.seq_lens[decodes:] // facts.compress_ratio).tolist()
    shared = replace(facts, dcp_interleave=max(facts.dcp_interleave // facts.compress_ratio, 1))
    ranks = [[local_len(shared, count, rank) for count in states] for rank in range(facts.dcp_size)]
    own = ranks[facts.dcp_rank] if facts.dcp_size > 1 else states
    bounds = []
    for row, query in enumerate(torch.diff(of.query_start_loc_cpu)[decodes:].tolist()):
        total = int(of.seq_lens[decodes + row])
        for position in range(total - query, total):
            seen = (position + 1) // facts.compress_ratio
            start = sum(own[:row])
            bounds.append((start, start + (local_len(shared, seen) if facts.dcp_size > 1 else seen)))
    edges = [0, *cuts, len(bounds)]
    chunks = []
    for start, end in zip(edges, edges[1:], strict=False):
        chunks.append(
            PlainIndexerChunk(
                block_table=of.block_table_tensor[decodes:],
                cu_seqlen_ks=ints([low for low, _ in bounds[start:end]]),
                cu_seqlen_ke=ints([high for _, high in bounds[start:end]]),
                cu_seq_lens=ints([sum(states[:upto]) for upto in range(len(states) + 1)]),
                token_to_seq=torch.repeat_interleave(
                    torch.arange(len(states), dtype=torch.int32), torch.tensor(states)
                ),
                total_seq_lens=sum(states),
                token_start=first + start,
                token_end=first + end,
                num_reqs=len(states),
                skip_kv_gather=start > 0,
                local_cu_seq_lens=ints([sum(own[:upto]) for upto in range(len(own) + 1)]),
                local_total_seq_lens=sum(own),
                max_local_total_seq_lens=max(map(sum, ranks)) if facts.dcp_size > 1 else sum(own),
            )
        )
    return chunks
