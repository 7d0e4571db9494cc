"""A sparse backend as one engine process makes it: builder, attention and indexer over one configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from mla_contract.backends.cuda_sparse import declaration as cuda
from mla_contract.backends.cuda_sparse.attention import CudaSparseAttention
from mla_contract.backends.cuda_sparse.builder import CudaSparseBuilder
from mla_contract.backends.rocm_sparse import declaration as rocm
from mla_contract.backends.rocm_sparse.attention import RocmSparseAttention
from mla_contract.backends.rocm_sparse.builder import RocmSparseBuilder
from mla_contract.backends.sparse.attention import SparseAttentionOp
from mla_contract.backends.sparse.builder import SparseBuilder
from mla_contract.backends.sparse.config import SparseConfig
from mla_contract.backends.sparse.indexer import SparseIndexer
from mla_contract.backends.sparse.metadata import SparseRecord
from mla_contract.contract.schema.declaration import BackendDeclaration
from mla_contract.contract.schema.provider import KernelProvider
from mla_contract.contract.schema.workspace import WorkspaceManager

Builder = TypeVar("Builder", bound=SparseBuilder[SparseRecord])
Attention = TypeVar("Attention", bound=SparseAttentionOp[Any])


class WholeBackend(Generic[Builder, Attention]):
    """Parts over one configuration and one workspace.

    Attributes:
        builder: Builds the records of each step.
        attention: The attention op.
        indexer: The indexer op.
    """

    builder_class: type[Builder]
    attention_class: type[Attention]
    declare: Callable[[SparseConfig], BackendDeclaration]

    def __init__(
        self,
        config: SparseConfig,
        manager: WorkspaceManager,
        device: torch.device | str = "cpu",
        *,
        providers: Sequence[KernelProvider] | None = None,
    ) -> None:
        """Make the parts; arguments as for each of them."""
        self.config, self.manager, self.declaration = config, manager, type(self).declare(config)
        self.builder = self.builder_class(config, device, providers=providers)
        self.attention = self.attention_class(config, manager, providers, device)
        self.indexer = SparseIndexer(config, manager, providers)

    def profile(self) -> None:
        """Reserve all scratch, as the profiling run does."""
        self.indexer.scratch.reserve(self.manager)


class WholeRocmSparse(WholeBackend[RocmSparseBuilder, RocmSparseAttention]):
    """The ROCm sparse backend."""

    builder_class, attention_class, declare = RocmSparseBuilder, RocmSparseAttention, staticmethod(rocm.declaration)


class WholeCudaSparse(WholeBackend[CudaSparseBuilder, CudaSparseAttention]):
    """The CUDA sparse backend."""

    builder_class, attention_class, declare = CudaSparseBuilder, CudaSparseAttention, staticmethod(cuda.declaration)
