"""The CUDA sparse backend as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mla_contract.backends.cuda_sparse.attention import CudaSparseAttention
from mla_contract.backends.cuda_sparse.builder import CudaSparseBuilder
from mla_contract.backends.sparse.backend import SparseBackend, sparse_declaration
from mla_contract.contract.schema.declaration import BackendDeclaration, MultipleOf

if TYPE_CHECKING:
    import torch

    from mla_contract.backends.sparse.config import SparseConfig
    from mla_contract.contract.schema.provider import KernelProvider
    from mla_contract.contract.schema.workspace import WorkspaceManager

NAME = "MLA_CONTRACT_CUDA_SPARSE"


def declaration(config: SparseConfig) -> BackendDeclaration:
    """Return what the backend says of itself under a configuration."""
    return sparse_declaration(config, NAME, (MultipleOf(64),))


class CudaSparseBackend(SparseBackend[CudaSparseBuilder, CudaSparseAttention]):
    """Builder, attention and indexer over one configuration and one workspace."""

    def __init__(
        self,
        config: SparseConfig,
        manager: WorkspaceManager,
        device: torch.device | str = "cpu",
        *,
        providers: Sequence[KernelProvider] | None = None,
    ) -> None:
        """Make the parts; arguments as for each of them."""
        builder = CudaSparseBuilder(config, device, providers=providers)
        attention = CudaSparseAttention(config, manager, providers, device)
        super().__init__(declaration(config), builder, attention, providers)
