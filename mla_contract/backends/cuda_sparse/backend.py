"""The backend as a whole: its declaration, and the parts that one engine process makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from mla_contract.backends.cuda_sparse.attention import CudaSparseAttention
from mla_contract.backends.cuda_sparse.builder import CudaSparseBuilder
from mla_contract.backends.rocm_sparse.indexer import SparseIndexer
from mla_contract.backends.rocm_sparse.workspace import plan_workspace
from mla_contract.contract.declaration import BackendDeclaration, LseBase, MultipleOf, MultiTokenDecode, Routing

if TYPE_CHECKING:
    from mla_contract.backends.rocm_sparse.config import SparseConfig
    from mla_contract.contract.provider import KernelProvider
    from mla_contract.contract.workspace import WorkspaceManager

NAME = "MLA_CONTRACT_CUDA_SPARSE"


def declaration(config: SparseConfig) -> BackendDeclaration:
    """Return what the backend says of itself under a configuration."""
    return BackendDeclaration(
        name=NAME,
        routing=Routing.SHARED_SPLIT,
        dense_prefill=config.dense_prefill,
        decode_lse=True,
        lse_base=LseBase.E,
        multi_token_decode=MultiTokenDecode.VARLEN,
        kernel_block_sizes=(MultipleOf(64),),
    )


class CudaSparseBackend:
    """Builder, attention and indexer over one configuration and one workspace.

    Attributes:
        builder: Builds the records of each step.
        attention: The attention op.
        indexer: The indexer op.
        declaration: What the backend says of itself.
    """

    def __init__(
        self,
        config: SparseConfig,
        manager: WorkspaceManager,
        device: torch.device | str = "cpu",
        *,
        providers: Sequence[KernelProvider] | None = None,
    ) -> None:
        """Make the parts; arguments as for each of them."""
        self.config, self.manager = config, manager
        self.declaration = declaration(config)
        self.builder = CudaSparseBuilder(config, device, providers=providers)
        self.attention = CudaSparseAttention(config, manager, providers, device)
        self.indexer = SparseIndexer(config, manager, providers)

    def profile(self) -> None:
        """Reserve all scratch, as the profiling run does."""
        plan_workspace(self.config).reserve(self.manager)
