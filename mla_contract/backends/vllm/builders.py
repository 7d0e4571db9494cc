"""vLLM's builder interface around our builders."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.v1.attention.backend import AttentionMetadataBuilder

from mla_contract.backends.cuda_sparse import declaration as cuda
from mla_contract.backends.cuda_sparse.builder import CudaSparseBuilder
from mla_contract.backends.rocm_sparse import declaration as rocm
from mla_contract.backends.rocm_sparse.builder import RocmSparseBuilder
from mla_contract.backends.sparse.lowering import Lowering
from mla_contract.backends.vllm.config import sparse_config
from mla_contract.backends.vllm.providers import given

if TYPE_CHECKING:
    import torch

    from mla_contract.backends.sparse.builder import SparseBuilder
    from mla_contract.backends.sparse.config import SparseConfig
    from mla_contract.backends.sparse.indexer_metadata import SparseIndexerMetadata
    from mla_contract.backends.sparse.metadata import SparseRecord
    from mla_contract.contract.schema.declaration import BackendDeclaration


class _Builder(AttentionMetadataBuilder):  # type: ignore[misc]
    """What all builders here do alike: one configuration, and decodes of up to ``next_n`` tokens come first."""

    shuffled: ClassVar[bool] = True

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device, **_: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        config = sparse_config(vllm_config, shuffled=self.shuffled, block_size=kv_cache_spec.block_size)
        self.config = replace(config, compress_ratio=kv_cache_spec.tokens_per_state)
        self._init_reorder_batch_threshold(self.config.next_n)
        self._prepare(device)

    def _prepare(self, device: torch.device) -> None:
        """Allocate the buffers."""
        raise NotImplementedError


class _AttentionBuilder(_Builder):
    """A builder of the attention's record."""

    inner_class: ClassVar[Any]

    @staticmethod
    def declare(config: SparseConfig) -> BackendDeclaration:
        """Return what the backend says of itself under a configuration."""
        raise NotImplementedError

    @cached_property
    def declaration(self) -> BackendDeclaration:
        """What the backend says of itself; the debug mode reads it."""
        return self.declare(self.config)

    def _prepare(self, device: torch.device) -> None:
        """Make our builder."""
        self._inner: SparseBuilder[SparseRecord] = self._make(self.config, device)

    def _make(self, config: SparseConfig, device: torch.device) -> SparseBuilder[SparseRecord]:
        """Return our builder for the layers of this group."""
        made: SparseBuilder[SparseRecord] = self.inner_class(config, device, providers=given())
        return made

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> SparseRecord:
        """Return the attention's record of this step; vLLM's batch is a common batch as it is."""
        return self._inner.build(common_attn_metadata)


class RocmSparseEngineBuilder(_AttentionBuilder):
    """Builds ``RocmSparseMetadata``."""

    inner_class = RocmSparseBuilder
    declare = staticmethod(rocm.declaration)


class CudaSparseEngineBuilder(_AttentionBuilder):
    """Builds ``CudaSparseMetadata``."""

    inner_class = CudaSparseBuilder
    declare = staticmethod(cuda.declaration)
    shuffled = False


class IndexerEngineBuilder(_Builder):
    """Builds the indexer's record, which is the same for both backends."""

    def _prepare(self, device: torch.device) -> None:
        """Allocate the buffers of the plan."""
        self._lowering = Lowering(self.config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> SparseIndexerMetadata:
        """Return the indexer's record of this step."""
        return self._lowering.indexer(self._lowering.step(common_attn_metadata))
