"""The reference lowering: one shared plan, made into records of each kind on the host. No record decides anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from mla_contract.adapters.context_parallel import ContextParallel, local_lens
from mla_contract.adapters.plan import BatchPlan, PlanConfig, plan_batch
from mla_contract.adapters.release import behaviour_of
from mla_contract.adapters.split import Split
from mla_contract.contract.schema.declaration import BackendDeclaration, Routing
from mla_contract.contract.step.facts import Facts
from mla_contract.testing import records
from mla_contract.testing.context_records import lower_context, tensor

if TYPE_CHECKING:
    from mla_contract.adapters.batch import BatchShape


class LoweredKind(StrEnum):
    """Kinds of metadata records."""

    DENSE = "dense"
    SPARSE = "sparse"
    AITER = "aiter"
    INDEXER = "indexer"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What does not change between the batches of one builder.

    Attributes:
        kind: The record to build.
        config: The planner's configuration.
        dense_prefill: Whether a sparse record has a prefill record.
        all_decodes: Whether a sparse record counts all its tokens as decodes.
    """

    kind: LoweredKind
    config: PlanConfig = field(default_factory=lambda: PlanConfig(block_size=16))
    dense_prefill: bool = True
    all_decodes: bool = False

    @property
    def declaration(self) -> BackendDeclaration | None:
        """What the backend declares; None where nothing but the shared split is meant."""
        if not self.all_decodes:
            return None
        return BackendDeclaration(
            name="all decodes", routing=Routing.ALL_DECODES, dense_prefill=False, decode_lse=False
        )

    def facts(self) -> Facts:
        """Return the configuration as the clauses read it."""
        config = self.config
        return Facts(
            kernel_block_size=config.block_size,
            decode_threshold=config.decode_threshold,
            uniform_decodes=config.require_uniform,
            short_extends_are_decodes=config.treat_short_extends_as_decodes,
            padding_may_prefill=behaviour_of(config.release).padding_starts_prefills,
            capturing=False,
            dcp_size=config.parallel.size,
            dcp_rank=config.parallel.rank,
            dcp_interleave=config.parallel.interleave,
            context_rows=config.workspace_rows,
            gather_by_page=None if config.workspace_rows is None else True,
            indexer_rows=config.indexer_states,
            logits_budget_bytes=None if config.indexer_states is None else config.logits_bytes,
            compress_ratio=config.compress_ratio if self.kind is LoweredKind.INDEXER else 1,
        )


def common_batch(
    shape: BatchShape, plan: BatchPlan, parallel: ContextParallel, *, live_flags: bool = False
) -> records.PlainBatch:
    """Return the common batch of a plan, with its slots derived from its block table.

    Args:
        shape: The batch, with a block table.
        plan: Its plan.
        parallel: The ranks that share its cache.
        live_flags: Whether trailing padding requests have no flag, as the newer runner leaves them.

    Sync: none.
    """
    start_loc, flags = tensor(shape.query_start_loc), shape.is_prefilling
    if live_flags and flags is not None:
        flags = flags[: len(np.trim_zeros(shape.query_lens, "b"))]
    return records.PlainBatch(
        query_start_loc=start_loc.clone(),
        query_start_loc_cpu=start_loc,
        seq_lens=tensor(shape.seq_lens),
        num_reqs=shape.num_reqs,
        num_actual_tokens=shape.num_actual_tokens,
        max_query_len=shape.max_query_len,
        max_seq_len=int(shape.seq_lens.max(initial=0)),
        block_table_tensor=tensor(shape.block_table),
        slot_mapping=tensor(plan.slot_mapping, "int64"),
        positions=tensor(plan.tokens.positions, "int64"),
        dcp_local_seq_lens=tensor(local_lens(shape.seq_lens, parallel)) if parallel.size > 1 else None,
        is_prefilling=None if flags is None else tensor(flags, "bool"),
        seq_lens_cpu_upper_bound=tensor(shape.seq_lens),
    )


def lower(batch: records.PlainBatch, plan: BatchPlan, setup: Setup) -> Any:
    """Return the metadata record of one kind.

    Args:
        batch: The common batch.
        plan: Its plan, made with ``setup.config``.
        setup: Kind and configuration.

    Sync: none.
    """
    if setup.kind is LoweredKind.INDEXER:
        return _indexer(batch, plan, setup)
    common = _counts(batch, plan.split)
    if setup.kind is LoweredKind.DENSE:
        return records.PlainDense(**common, prefill=_prefill(batch, plan), decode=_decode(batch, plan, setup))
    sparse = common | _sparse_fields(batch, plan, setup)
    if setup.kind is LoweredKind.SPARSE:
        return records.PlainSparse(**sparse)
    return records.PlainAiter(**sparse, **_paged(plan, setup))


def build(shape: BatchShape, setup: Setup, *, live_flags: bool = False) -> tuple[records.PlainBatch, Any]:
    """Plan a batch and return it with its metadata; ``live_flags`` is as for ``common_batch``."""
    plan = plan_batch(shape, setup.config)
    batch = common_batch(shape, plan, setup.config.parallel, live_flags=live_flags)
    if setup.all_decodes:
        plan = plan._replace(split=Split(shape.num_reqs, 0, shape.num_actual_tokens, 0))
    return batch, lower(batch, plan, setup)


def _counts(batch: records.PlainBatch, split: Split) -> dict[str, Any]:
    return {
        "num_reqs": batch.num_reqs,
        "max_query_len": batch.max_query_len,
        "max_seq_len": batch.max_seq_len,
        "num_actual_tokens": batch.num_actual_tokens,
        "query_start_loc": batch.query_start_loc,
        "slot_mapping": batch.slot_mapping,
        "num_decodes": split.num_decodes,
        "num_decode_tokens": split.num_decode_tokens,
        "num_prefills": split.num_prefills,
    }


def _sparse_fields(batch: records.PlainBatch, plan: BatchPlan, setup: Setup) -> dict[str, Any]:
    split, shape = plan.split, plan.shape
    record = _prefill(batch, plan) if setup.dense_prefill else None
    own = shape.query_lens[: split.num_decodes]
    longest = int(shape.seq_lens[split.num_decodes :].max(initial=0)) if record is not None else 0
    return {
        "prefill": record,
        "decode": None,
        "block_table": batch.block_table_tensor,
        "req_id_per_token": tensor(plan.tokens.requests),
        "seq_lens": batch.seq_lens,
        "block_size": setup.config.block_size,
        "topk_tokens": setup.config.topk_tokens or 0,
        "decode_max_query_len": int(own.max(initial=0)),
        "prefill_max_seq_len": longest,
    }


def _paged(plan: BatchPlan, setup: Setup) -> dict[str, Any]:
    import torch

    rows = plan.shape.num_actual_tokens
    return {
        "qo_indptr": tensor(np.arange(rows + 1)),
        "paged_kv_last_page_len": tensor(np.ones(rows)),
        "paged_kv_indices": tensor(np.zeros(rows * (setup.config.topk_tokens or 0))),
        "paged_kv_indptr": tensor(plan.sparse_start_loc),
        "attn_out_dtype": torch.bfloat16,
    }


def _decode(batch: records.PlainBatch, plan: BatchPlan, setup: Setup) -> records.PlainDecode | None:
    if not plan.split.num_decodes:
        return None
    lens, sharing = plan.shape.seq_lens[: plan.split.num_decodes], setup.config.parallel
    return records.PlainDecode(
        batch.block_table_tensor[: len(lens)],
        tensor(local_lens(lens, sharing)),
        tensor(lens) if sharing.size > 1 else None,
    )


def _prefill(batch: records.PlainBatch, plan: BatchPlan) -> records.PlainPrefill | None:
    first = plan.split.num_decodes
    if not plan.split.num_prefills:
        return None
    lens = plan.shape.query_lens[first:]
    return records.PlainPrefill(
        block_table=batch.block_table_tensor[first:],
        query_start_loc=tensor(plan.shape.query_start_loc[first:] - plan.shape.query_start_loc[first]),
        max_query_len=int(lens.max(initial=0)),
        chunked_context=lower_context(plan.context),
        query_lens_cpu=tensor(lens),
    )


def _indexer(batch: records.PlainBatch, plan: BatchPlan, setup: Setup) -> records.PlainIndexer:
    split = plan.split
    return records.PlainIndexer(
        seq_lens=batch.seq_lens,
        max_seq_len=batch.max_seq_len,
        slot_mapping=batch.slot_mapping,
        num_decodes=split.num_decodes,
        num_decode_tokens=split.num_decode_tokens,
        num_prefills=split.num_prefills,
        num_prefill_tokens=split.num_prefill_tokens,
        decode=_indexer_decode(batch, plan),
        prefill=None if plan.indexer is None else records.PlainIndexerPrefill(_indexer_chunks(batch, plan)),
    )


def _indexer_decode(batch: records.PlainBatch, plan: BatchPlan) -> records.PlainIndexerDecode | None:
    decode = plan.decode
    if decode is None:
        return None
    owners = tensor(decode.row_requests)
    table = batch.block_table_tensor[owners.clamp(min=0)]
    return records.PlainIndexerDecode(
        block_table=table.masked_fill(owners[:, None] < 0, 0),
        seq_lens=tensor(decode.seq_lens),
        decode_lens=tensor(decode.decode_lens),
        requires_padding=decode.requires_padding,
        schedule_metadata=tensor(np.zeros((1, 2))),
        global_seq_lens=None if decode.global_seq_lens is None else tensor(decode.global_seq_lens),
    )


def _indexer_chunks(batch: records.PlainBatch, plan: BatchPlan) -> Sequence[records.PlainIndexerChunk]:
    indexer = plan.indexer
    return [
        records.PlainIndexerChunk(
            block_table=batch.block_table_tensor[chunk.request_slice],
            cu_seqlen_ks=tensor(chunk.cu_seqlen_ks),
            cu_seqlen_ke=tensor(chunk.cu_seqlen_ke),
            cu_seq_lens=tensor(chunk.cu_seq_lens),
            token_to_seq=tensor(chunk.token_to_seq()),
            total_seq_lens=chunk.total_seq_lens,
            token_start=chunk.token_start,
            token_end=chunk.token_end,
            num_reqs=chunk.num_reqs,
            skip_kv_gather=chunk.skip_kv_gather,
            local_cu_seq_lens=None if chunk.local_cu_seq_lens is None else tensor(chunk.local_cu_seq_lens),
            local_total_seq_lens=chunk.local_total_seq_lens,
            max_local_total_seq_lens=chunk.max_local_total_seq_lens,
        )
        for chunk in (() if indexer is None else indexer.chunks)
    ]
