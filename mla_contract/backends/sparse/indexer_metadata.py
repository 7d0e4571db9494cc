"""The indexer's record, and how a plan becomes one; both sparse backends use it."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mla_contract.adapters.buffers import DevicePlan, expand_owners
from mla_contract.errors import InvalidContract

if TYPE_CHECKING:
    from mla_contract.adapters.decode import DecodePlan
    from mla_contract.backends.sparse.config import SparseConfig
    from mla_contract.backends.sparse.step import LoweredStep
    from mla_contract.contract.schema.batch import CommonBatch
    from mla_contract.contract.schema.indexer import IndexerMetadata

WIDTH_TOKENS = 128
"""The engine rounds the columns of its block tables up to this many tokens.

Source: vLLM 0.32.0 v1/worker/block_table.py, get_block_table_width.
"""


@dataclass(kw_only=True)
class IndexerChunkRecord:
    """One prefill chunk; the owners of gathered keys are expanded on the device when somebody reads them."""

    block_table: Tensor
    cu_seqlen_ks: Tensor
    cu_seqlen_ke: Tensor
    cu_seq_lens: Tensor
    total_seq_lens: int
    token_start: int
    token_end: int
    num_reqs: int
    skip_kv_gather: bool
    local_cu_seq_lens: Tensor | None = None
    local_total_seq_lens: int = 0
    max_local_total_seq_lens: int = 0

    @property
    def token_to_seq(self) -> Tensor:
        """Chunk-local owner of each gathered key. Sync: none."""
        return expand_owners(self.cu_seq_lens, self.total_seq_lens)


@dataclass
class IndexerPrefillRecord:
    """The prefill part."""

    chunks: list[IndexerChunkRecord]


@dataclass(kw_only=True)
class IndexerDecodeRecord:
    """The decode part: a row is a token, or a request where ``seq_lens`` has two axes."""

    block_table: Tensor
    seq_lens: Tensor
    decode_lens: Tensor
    requires_padding: bool
    schedule_metadata: Tensor
    global_seq_lens: Tensor | None = None


@dataclass(kw_only=True)
class SparseIndexerMetadata:
    """The indexer's record for one batch."""

    seq_lens: Tensor
    max_seq_len: int
    slot_mapping: Tensor
    query_start_loc: Tensor
    num_decodes: int
    num_decode_tokens: int
    num_prefills: int
    num_prefill_tokens: int
    decode: IndexerDecodeRecord | None
    prefill: IndexerPrefillRecord | None


class IndexerLowering:
    """Lowers the indexer's part of a plan; block tables of decode tokens live in a buffer that never moves."""

    def __init__(self, config: SparseConfig, device: torch.device) -> None:
        multiple = WIDTH_TOKENS // gcd(WIDTH_TOKENS, config.block_size)
        columns = -(-config.max_model_len // (config.block_size * multiple)) * multiple
        self._tables = torch.zeros(config.capacity_rows, columns, dtype=torch.int32, device=device)
        self._schedule = torch.zeros(0, dtype=torch.int32, device=device)

    def lower(self, step: LoweredStep) -> SparseIndexerMetadata:
        """Return the indexer's record.

        Raises:
            InvalidContract: The step was planned without the indexer.

        Sync: none.
        """
        if not step.has_indexer:
            raise InvalidContract("the step was planned without the indexer: call step(batch), or build_pair(batch)")
        batch, split = step.batch, step.split
        return SparseIndexerMetadata(
            seq_lens=batch.seq_lens,
            max_seq_len=batch.max_seq_len,
            slot_mapping=batch.slot_mapping,
            query_start_loc=batch.query_start_loc,
            num_decodes=split.num_decodes,
            num_decode_tokens=split.num_decode_tokens,
            num_prefills=split.num_prefills,
            num_prefill_tokens=split.num_prefill_tokens,
            decode=self._decode(step, batch.block_table_tensor) if split.num_decodes else None,
            prefill=_prefill(step.lowered, batch) if isinstance(step.lowered, DevicePlan) else None,
        )

    def _decode(self, step: LoweredStep, table: Tensor) -> IndexerDecodeRecord:
        """Return the decode part; a row of it is a request, or a token."""
        lens, plan = step.lowered["decode_seq_lens"], step.known_plan and step.known_plan.decode
        rows = len(lens) if plan is None else plan.num_rows
        if plan is not None and plan.flattened and (plan.max_decode_len > 1 or rows != step.split.num_decodes):
            table = self._expanded(plan, step.lowered["decode_row_requests"], table)
        return IndexerDecodeRecord(
            block_table=table if table.shape[0] == rows else table[:rows],
            seq_lens=lens if plan is None or plan.flattened else lens.view(rows, -1),
            decode_lens=step.lowered["decode_lens"],
            requires_padding=plan is not None and plan.requires_padding,
            schedule_metadata=self._schedule,
        )

    def _expanded(self, plan: DecodePlan, owners: Tensor, table: Tensor) -> Tensor:
        """Return a block table row for each decode token."""
        table = table[:, : self._tables.shape[1]]
        rows = self._tables.view(-1)[: plan.num_rows * table.shape[1]].view(plan.num_rows, table.shape[1])
        torch.index_select(table, 0, owners.clamp(min=0), out=rows)
        return rows.masked_fill_(owners[:, None] < 0, 0)


def _prefill(lowered: DevicePlan, batch: CommonBatch) -> IndexerPrefillRecord | None:
    """Return the prefill chunks; None without prefills."""
    plan, split, table = lowered.plan.indexer, lowered.plan.split, batch.block_table_tensor
    if plan is None:
        return None
    first, edge, own = split.num_decode_tokens, 0, 0
    chunks = []
    for chunk in plan.chunks:
        if not chunk.skip_kv_gather:
            edge = own
            own = edge + chunk.num_reqs + 1
        part = chunk.token_start - first, chunk.token_end - first
        chunks.append(
            IndexerChunkRecord(
                block_table=table[chunk.request_slice],
                cu_seqlen_ks=lowered.rows("indexer_cu_seqlen_ks", *part),
                cu_seqlen_ke=lowered.rows("indexer_cu_seqlen_ke", *part),
                cu_seq_lens=lowered.rows("indexer_cu_seq_lens", edge, edge + chunk.num_reqs + 1),
                total_seq_lens=chunk.total_seq_lens,
                token_start=chunk.token_start,
                token_end=chunk.token_end,
                num_reqs=chunk.num_reqs,
                skip_kv_gather=chunk.skip_kv_gather,
            )
        )
    return IndexerPrefillRecord(chunks)


if TYPE_CHECKING:

    def _is_indexer_metadata(record: SparseIndexerMetadata) -> IndexerMetadata:
        """Let a type checker compare the record with the contract."""
        return record
