"""From the engine's batch to a plan on the device, for the builders of attention and indexer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from mla_contract.adapters.arrays import Int32Array
from mla_contract.adapters.buffers import DevicePlan, PlanBuffers
from mla_contract.backends.sparse.device_lens import BOUNDS, DeviceLens
from mla_contract.backends.sparse.indexer_metadata import IndexerLowering, SparseIndexerMetadata
from mla_contract.backends.sparse.plain_decodes import PlainDecodes
from mla_contract.backends.sparse.planning import host_array, plan_of
from mla_contract.backends.sparse.prefill import lower_prefill
from mla_contract.backends.sparse.step import LoweredStep

if TYPE_CHECKING:
    from mla_contract.backends.sparse.config import SparseConfig
    from mla_contract.contract.schema.batch import CommonBatch

LOWERED = (
    "sparse_start_loc",
    "decode_seq_lens",
    "decode_lens",
    "decode_row_requests",
    "req_id_per_token",
    "context_gather_starts",
    "context_cu_seq_lens",
    "context_query_start_loc",
    "indexer_cu_seq_lens",
    "indexer_cu_seqlen_ks",
    "indexer_cu_seqlen_ke",
)
"""Arrays of a plan that the records of sparse backends hold."""


class Lowering:
    """Plans each batch once and copies the plan to the device once, for the MLA builder and the indexer's builder."""

    def __init__(self, config: SparseConfig, device: torch.device | str) -> None:
        """Allocate every persistent buffer; done once, while the engine profiles."""
        self.config = config
        self.device = torch.device(device)
        differ = config.device_lens_may_differ
        self.buffers = PlanBuffers(config.capacity, self.device, (*LOWERED, BOUNDS) if differ else LOWERED)
        self._device_lens = DeviceLens(config, self.buffers) if differ else None
        self._plain = PlainDecodes(config, self.buffers)
        self._indexer = IndexerLowering(config, self.device)
        rows = config.context_rows if config.dense_prefill and config.context_rows else 0
        self._context = torch.zeros(rows, config.width, dtype=config.out_dtype, device=self.device)

    def step(self, batch: CommonBatch, *, indexer: bool = True) -> LoweredStep:
        """Plan a batch and copy the plan to the device.

        Args:
            batch: The batch.
            indexer: Whether the indexer's record will be made of the step.

        Raises:
            InvalidContract: The batch has no host lengths, or ranks share its requests.
            InvalidBatch: The batch cannot be planned, or exceeds the buffers.

        Sync: reads no device memory.
        """
        step = self._plain.step(batch, indexer) or self._planned(batch, indexer)
        if self._device_lens is not None and (live := int(step.query_lens.sum())):
            self._device_lens.apply(step, live)
        return step

    def _planned(self, batch: CommonBatch, indexer: bool) -> LoweredStep:
        """Return the step of a batch of any kind."""
        plan = plan_of(batch, self.config, indexer=indexer)
        lowered = self.buffers.lower(plan)
        if plan.shape.num_live_tokens < plan.shape.num_actual_tokens:
            _own_uniform_padding(lowered, batch)
        split = plan.split
        longest = _longest(plan.shape.seq_lens[split.num_decodes :])
        # Where everything decodes, the engine's bound holds: a graph is captured with shorter queries than it replays.
        # Source: vLLM 0.32.0 model_executor/layers/attention/sparse_mla_attention.py, build.
        decoding = (
            batch.max_query_len if not split.num_prefills else _longest(plan.shape.query_lens[: split.num_decodes])
        )
        dense = self.config.dense_prefill and split.num_prefills > 0 and longest <= self.config.topk_tokens
        prefill = None
        if self.config.dense_prefill:
            prefill = lower_prefill(lowered, batch, self._context, use_dense_mha=dense)
        return LoweredStep(
            config=self.config,
            batch=batch,
            split=split,
            lowered=lowered,
            num_kernel_rows=split.num_decode_tokens if dense else plan.shape.num_actual_tokens,
            decode_max_query_len=decoding if split.num_decodes else 0,
            has_indexer=indexer,
            query_lens=plan.shape.query_lens,
            sparse_start_loc=plan.sparse_start_loc,
            prefill=prefill,
            prefill_max_seq_len=longest,
            known_plan=plan,
        )

    def indexer(self, step: LoweredStep) -> SparseIndexerMetadata:
        """Return the indexer's record of a step.

        Raises:
            InvalidContract: The step was planned without the indexer.

        Sync: none.
        """
        return self._indexer.lower(step)


def _longest(lens: Int32Array) -> int:
    """Return the largest length; 0 if there is none."""
    return int(np.maximum.reduce(lens)) if len(lens) else 0


def _own_uniform_padding(lowered: DevicePlan, batch: CommonBatch) -> None:
    """Give the padding tokens of a uniform batch to their padding requests; elsewhere padding tokens own row 0."""
    stated, live = int(host_array(batch.query_start_loc_cpu)[-1]), lowered.plan.shape.num_live_tokens
    if stated > live:
        token = torch.arange(live, stated, dtype=torch.int32, device=batch.query_start_loc.device)
        owners = lowered["req_id_per_token"][live:stated]
        torch.div(token, batch.max_query_len, rounding_mode="floor", out=owners)
