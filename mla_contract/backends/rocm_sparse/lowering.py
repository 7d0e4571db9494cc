"""From the engine's batch to a plan on the device, and the fields that every sparse backend fills alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.buffers import DevicePlan, PlanBuffers
from mla_contract.adapters.plan import BatchPlan, plan_batch
from mla_contract.backends.rocm_sparse.indexer_metadata import IndexerLowering, SparseIndexerMetadata
from mla_contract.backends.rocm_sparse.prefill import SparsePrefill, lower_prefill
from mla_contract.errors import InvalidContract

if TYPE_CHECKING:
    from mla_contract.backends.rocm_sparse.config import SparseConfig
    from mla_contract.contract.batch import CommonBatch


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One batch with its plan: what the MLA record and the indexer's record are both made of.

    Attributes:
        batch: The engine's batch.
        lowered: Its plan, and the plan's arrays on the device.
        prefill: The prefill record; None without dense prefill.
        prefill_max_seq_len: Longest prefill, in tokens.
        num_kernel_rows: Rows of q that the attention of this step gets.
    """

    batch: CommonBatch
    lowered: DevicePlan
    prefill: SparsePrefill | None
    prefill_max_seq_len: int
    num_kernel_rows: int

    @property
    def plan(self) -> BatchPlan:
        """The plan on the host."""
        return self.lowered.plan

    def shared_fields(self, config: SparseConfig) -> dict[str, Any]:
        """Return the fields that do not depend on the kernels: counts, core and sparse. Sync: none."""
        split, decode = self.plan.split, self.plan.decode
        return {
            "num_reqs": self.batch.num_reqs,
            "num_actual_tokens": self.batch.num_actual_tokens,
            "num_decodes": split.num_decodes,
            "num_prefills": split.num_prefills,
            "num_decode_tokens": split.num_decode_tokens,
            "query_start_loc": self.batch.query_start_loc,
            "slot_mapping": self.batch.slot_mapping,
            "max_query_len": self.batch.max_query_len,
            "max_seq_len": self.batch.max_seq_len,
            "prefill": self.prefill,
            "block_table": self.batch.block_table_tensor,
            "req_id_per_token": self.lowered["req_id_per_token"][: self.num_kernel_rows],
            "topk_tokens": config.topk_tokens,
            "block_size": config.block_size,
            "prefill_max_seq_len": self.prefill_max_seq_len,
            "seq_lens": self.batch.seq_lens,
            "decode_max_query_len": 0 if decode is None else decode.max_decode_len,
        }


class Lowering:
    """Plans each batch once and copies the plan to the device once, for the MLA builder and the indexer's builder."""

    def __init__(self, config: SparseConfig, device: torch.device | str) -> None:
        """Allocate every persistent buffer; done once, while the engine profiles."""
        self.config = config
        self.device = torch.device(device)
        self.buffers = PlanBuffers(config.capacity, self.device)
        self._indexer = IndexerLowering(config, self.device)
        rows = config.context_rows if config.dense_prefill and config.context_rows else 0
        self._context = torch.zeros(rows, config.width, dtype=config.out_dtype, device=self.device)

    def step(self, batch: CommonBatch) -> Step:
        """Plan a batch and copy the plan to the device.

        Raises:
            InvalidContract: The batch has no host lengths.
            InvalidBatch: The batch cannot be planned, or exceeds the buffers.

        Sync: reads no device memory.
        """
        lowered = self.buffers.lower(plan_of(batch, self.config))
        _own_uniform_padding(lowered, batch)
        split, plan = lowered.plan.split, lowered.plan
        longest = int(plan.shape.seq_lens[split.num_decodes :].max()) if split.num_prefills else 0
        dense = self.config.dense_prefill and split.num_prefills > 0 and longest <= self.config.topk_tokens
        prefill = (
            lower_prefill(lowered, batch, self._context, use_dense_mha=dense) if self.config.dense_prefill else None
        )
        rows = split.num_decode_tokens if dense else plan.shape.num_actual_tokens
        return Step(batch, lowered, prefill, longest, rows)

    def indexer(self, step: Step) -> SparseIndexerMetadata:
        """Return the indexer's record of a step. Sync: none."""
        return self._indexer.lower(step.lowered, step.batch)


def plan_of(batch: CommonBatch, config: SparseConfig) -> BatchPlan:
    """Return the plan of an engine's batch.

    Uniform decodes keep a row for each request where the configuration wants it and the rows fit; all others are
    flattened, because a kernel with one query length would score a shorter query against the wrong keys.

    Raises:
        InvalidContract: The batch has no host lengths.

    Sync: none.
    """
    bounds = batch.seq_lens_cpu_upper_bound
    if bounds is None:
        raise InvalidContract(
            "seq_lens_cpu_upper_bound is None: planning needs host lengths, and build() may not read the device"
        )
    lens, seq_lens = np.diff(_host(batch.query_start_loc_cpu)), _host(bounds)
    if len(seq_lens) and seq_lens[-1] == 0:
        lens = lens * (seq_lens > 0)
    shape = BatchShape.of(
        lens,
        seq_lens,
        num_actual_tokens=batch.num_actual_tokens,
        is_prefilling=None if batch.is_prefilling is None else _host(batch.is_prefilling),
    )
    plan = plan_batch(shape, config.native_plan if config.native_decode else config.flat_plan)
    if config.native_decode and not _keeps_rows(plan, config):
        return plan_batch(shape, config.flat_plan)
    return plan


def _own_uniform_padding(lowered: DevicePlan, batch: CommonBatch) -> None:
    """Give the padding tokens of a uniform batch to their padding requests; elsewhere padding tokens own row 0."""
    shape = lowered.plan.shape
    stated, live = int(batch.query_start_loc_cpu[-1]), shape.num_live_tokens
    if stated > live:
        token = torch.arange(live, stated, dtype=torch.int32, device=batch.query_start_loc.device)
        owners = lowered["req_id_per_token"][live:stated]
        torch.div(token, batch.max_query_len, rounding_mode="floor", out=owners)


def _host(array: Tensor) -> Any:
    """Return a host tensor's elements."""
    return array.numpy()


def _keeps_rows(plan: BatchPlan, config: SparseConfig) -> bool:
    """Return whether the decodes can have a row for each request."""
    if plan.decode is None or plan.decode.max_decode_len <= 1:
        return False
    lens = plan.decode.per_req_decode_lens
    uniform = bool(((lens == plan.decode.max_decode_len) | (lens == 0)).all())
    return uniform and plan.decode.num_rows * plan.decode.max_decode_len <= config.decode_rows
