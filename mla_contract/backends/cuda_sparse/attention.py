"""The attention op over padded rows: every row has ``topk`` entries, -1 where it has no position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mla_contract.backends.cuda_sparse.metadata import CudaSparseMetadata
from mla_contract.backends.kernels import registry
from mla_contract.backends.sparse.attention import SparseAttentionOp
from mla_contract.contract.schema.provider import KernelProvider, SparseAttention
from mla_contract.contract.schema.workspace import WorkspaceManager

if TYPE_CHECKING:
    from mla_contract.backends.sparse.config import SparseConfig


class CudaSparseAttention(SparseAttentionOp):
    """Attention over rows of equal length."""

    def __init__(
        self,
        config: SparseConfig,
        manager: WorkspaceManager,
        providers: Sequence[KernelProvider] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Keep what every call needs; arguments as for the base class."""
        super().__init__(config, manager, providers, device)
        rows = torch.arange(config.token_rows + 1, dtype=torch.int32, device=device)
        self._offsets = rows * config.topk_tokens

    def forward_mqa(
        self,
        q: Tensor,
        kv_cache: Tensor,
        topk_indices: Tensor,
        metadata: CudaSparseMetadata,
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend from each row to its selected positions.

        Args:
            q: [rows, heads, width], exactly the rows that the record describes.
            kv_cache: Cache, [slots, width] or [blocks, block_size, width].
            topk_indices: [at least rows, topk] int32, request-local positions, -1 pads.
            metadata: The record of this step.
            out: [rows, heads, value_width]; made when None.
            lse: [rows, heads] float32, natural logarithm; written when given.
            sinks: [heads] float32.

        Returns:
            The output; rows without a key are 0.

        Raises:
            ContractError: The record describes other rows than q has.
            NoProvider: No provider can run the inputs.

        Sync: none of its own.
        """
        slots = self._slots(q, topk_indices, metadata)
        value = self._result(q, out)
        registry.run(
            SparseAttention(
                q=q,
                kv_cache=kv_cache.reshape(-1, kv_cache.shape[-1]),
                kv_indptr=self._offsets[: q.shape[0] + 1],
                kv_indices=slots.view(-1),
                out=value,
                softmax_scale=self.config.softmax_scale,
                lse=lse,
                sinks=sinks,
            ),
            self.providers,
        )
        return value
