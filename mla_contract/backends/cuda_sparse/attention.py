"""The attention op over padded rows: every row has ``topk`` entries, -1 where it has no position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mla_contract.backends.cuda_sparse.metadata import CudaSparseMetadata
from mla_contract.backends.sparse.attention import SelectedSlots, SparseAttentionOp

if TYPE_CHECKING:
    from mla_contract.backends.sparse.config import SparseConfig
    from mla_contract.contract.schema.provider import KernelProvider
    from mla_contract.contract.schema.workspace import WorkspaceManager


class CudaSparseAttention(SparseAttentionOp[CudaSparseMetadata]):
    """Attention over rows of equal length."""

    def __init__(
        self,
        config: SparseConfig,
        manager: WorkspaceManager,
        providers: Sequence[KernelProvider] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Keep what every call needs, and the offsets of the most rows; arguments as for the base class."""
        super().__init__(config, manager, providers, device)
        rows = torch.arange(config.token_rows + 1, dtype=torch.int32, device=device)
        self._offsets = rows * config.topk_tokens

    def _select(self, slots: Tensor, metadata: CudaSparseMetadata) -> SelectedSlots:
        """Return the padded rows as they are."""
        return SelectedSlots(self._offsets[: slots.shape[0] + 1], slots.view(-1))
