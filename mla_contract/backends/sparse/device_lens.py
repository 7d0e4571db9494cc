"""Sequence lengths that only the device knows: where drafts were rejected, the host has a bound and plans with it.

What a kernel reads of a plan is brought to the device's lengths there, in place and without reading them back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mla_contract.adapters.buffers import PlanBuffers

if TYPE_CHECKING:
    from mla_contract.backends.sparse.config import SparseConfig
    from mla_contract.backends.sparse.step import LoweredStep

BOUNDS = "seq_lens"
"""The field that holds the host's lengths on the device."""


class DeviceLens:
    """Shifts a lowered step by what the device's lengths are below the host's."""

    def __init__(self, config: SparseConfig, buffers: PlanBuffers) -> None:
        self._config, self._buffers = config, buffers

    def apply(self, step: LoweredStep, num_live: int) -> None:
        """Bring offsets and decode rows to the device's lengths; a prefill has no drafts, and its length is known.

        Args:
            step: The lowered step.
            num_live: Query tokens that belong to a request.

        Sync: reads no device memory.
        Source: vLLM 0.32.0 v1/worker/gpu_model_runner.py, _prepare_inputs: with asynchronous scheduling the host counts
            drafts as accepted, and the device subtracts those that were not.
        """
        batch, split = step.batch, step.split
        owners = self._buffers.buffer("req_id_per_token")[:num_live].long()
        visible = batch.seq_lens[owners] - batch.query_start_loc[1:][owners]
        visible += torch.arange(1, num_live + 1, dtype=torch.int32, device=visible.device)
        self._write_offsets(visible.clamp_(max=self._config.topk_tokens), num_live)
        if step.has_indexer and split.num_decodes:
            self._shift_rows(step, batch.seq_lens - self._buffers.buffer(BOUNDS)[: batch.num_reqs])

    def _write_offsets(self, kept: Tensor, num_live: int) -> None:
        """Write the prefix sum of the keys that tokens read; rows behind repeat it."""
        offsets = self._buffers.overwrite("sparse_start_loc", padding=True)
        torch.cumsum(kept, 0, dtype=torch.int32, out=offsets[1 : num_live + 1])
        offsets[num_live + 1 :] = offsets[num_live]

    def _shift_rows(self, step: LoweredStep, shift: Tensor) -> None:
        """Shift the lengths of decode rows; padding has none."""
        owners = step.lowered["decode_row_requests"].long()
        rows = self._buffers.overwrite("decode_seq_lens")[: len(step.lowered["decode_seq_lens"])]
        cells = rows.view(len(owners), -1)
        cells += shift[owners.clamp(min=0)][:, None] * (cells > 0)
