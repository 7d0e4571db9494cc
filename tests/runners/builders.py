"""vLLM's builders of MLA metadata, each constructed by its own ``__init__`` through an ``AttentionGroup``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

import torch
from vllm.model_executor.layers.attention import mla_attention as dense
from vllm.model_executor.layers.attention import sparse_mla_attention as sparse
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.mla import flashmla_sparse, indexer, rocm_aiter_mla_sparse, xpu_mla_sparse
from vllm.v1.kv_cache_interface import MLAAttentionSpec
from vllm.v1.worker.utils import AttentionGroup

from tests.runners.configuration import INDEXER_LAYER, LATENT, LAYER, ROPE, EngineConfig, Setting
from tests.runners.releases import call, find

ROLE = find("vllm.v1.kv_cache_interface", "SparseCacheRole")
"""What a cache of sparse attention holds; older releases have no word for it."""

COMPRESSED = 4
"""Tokens of one state of a compressed indexer."""

INDEX_ROW_BYTES = 132
"""A cached row of the indexer: 128 elements of fp8 and a float32 scale."""


def dense_backend(support: str, graphs: Any) -> type:
    """Return a dense backend that only says which queries its kernels take, as vLLM's do.

    Args:
        support: A name in vLLM's QueryLenSupport.
        graphs: What its graphs may hold.
    """

    class Builder(dense.MLACommonMetadataBuilder):  # type: ignore[misc]
        """vLLM's builder."""

        _cudagraph_support = graphs
        query_len_support = getattr(dense.QueryLenSupport, support)

    class Backend(dense.MLACommonBackend):  # type: ignore[misc]
        """vLLM's backend."""

        @staticmethod
        def get_name() -> str:
            """Return a name."""
            return f"DENSE_{support}"

        @staticmethod
        def get_builder_cls() -> type:
            """Return the builder."""
            return Builder

        @staticmethod
        def get_impl_cls() -> type:
            """Return vLLM's impl: a backend without one has a layer of its own."""
            impl: type = dense.MLACommonImpl
            return impl

    return Backend


def sparse_backend(uniform: bool) -> type:
    """Return a sparse backend with the shared builder, as those of FlashInfer and FlashAttention have it.

    Args:
        uniform: Whether decodes must have one length.
    """

    class Builder(sparse.SparseMLACommonMetadataBuilder):  # type: ignore[misc]
        """vLLM's shared builder; a threshold is what every subclass sets."""

        _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH
        metadata_cls = getattr(sparse, "SparseMLACommonMetadata", flashmla_sparse.FlashMLASparseMetadata)
        require_uniform_decodes = uniform

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)

    class Backend(flashmla_sparse.FlashMLASparseBackend):  # type: ignore[misc]
        """A sparse backend."""

        @staticmethod
        def get_name() -> str:
            """Return a name."""
            return "SPARSE_UNIFORM" if uniform else "SPARSE"

        @staticmethod
        def get_builder_cls() -> type:
            """Return the builder."""
            return Builder

    return Backend


def indexer_backend(*, flattened: bool = False, varlen: bool = False) -> type:
    """Return the indexer's backend on a device with certain decode kernels.

    Args:
        flattened: Whether each decode token is a row, for want of a kernel for several.
        varlen: Whether the kernel takes decodes of different lengths.
    """

    class Builder(indexer.DeepseekV32IndexerMetadataBuilder):  # type: ignore[misc]
        """vLLM's builder; which kernels there are is asked of the device, which a CPU cannot answer."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.use_flattening, self.supports_varlen = flattened, varlen

        @classmethod
        def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> Any:
            """Return what vLLM's says on such a device."""
            return AttentionCGSupport.ALWAYS if flattened or varlen else AttentionCGSupport.UNIFORM_BATCH

    class Backend(indexer.DeepseekV32IndexerBackend):  # type: ignore[misc]
        """vLLM's backend."""

        @staticmethod
        def get_builder_cls() -> type:
            """Return the builder."""
            return Builder

    return Backend


@dataclass(frozen=True, slots=True)
class Kind:
    """A builder of the table.

    Attributes:
        backend: Its backend's class.
        ratio: Tokens of one cached state.
        is_indexer: Whether the cache is an indexer's.
        changes: What its setting differs in from the others'.
        alone: Why it does not serve several ranks of decode context parallelism; empty where it does.
        broken: Why it does not run in this release; empty where it does.
    """

    backend: type
    ratio: int = 1
    is_indexer: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    alone: str = ""
    broken: str = ""

    def setting(self, setting: Setting) -> Setting:
        """Return a setting as this builder wants it."""
        return replace(setting, **self.changes)

    def spec(self, setting: Setting) -> Any:
        """Return the spec of its cache."""
        width = INDEX_ROW_BYTES if self.is_indexer else LATENT + ROPE
        dtype = torch.uint8 if self.is_indexer else torch.bfloat16
        role = None if ROLE is None else (ROLE.INDEXER if self.is_indexer else ROLE.SPARSE)
        return call(
            MLAAttentionSpec,
            block_size=setting.block_size,
            num_kv_heads=1,
            head_size=width,
            dtype=dtype,
            tokens_per_state=self.ratio,
            cache_role=role,
        )

    def group(self, setting: Setting, config: EngineConfig) -> Any:
        """Return an attention group with a builder that its real ``__init__`` made."""
        layer = INDEXER_LAYER if self.is_indexer else LAYER
        group = AttentionGroup(self.backend, [layer], self.spec(setting), 0)
        group.create_metadata_builders(config, torch.device("cpu"), setting.block_size)
        return group


def _by_record(backend: type, record: type) -> Kind:
    """Return the builder of a record of its own, and what it does not serve: what its readers read and it lacks."""
    declared = {one.name for one in fields(record)}

    def lacking(text: str, joint: str, *names: str) -> str:
        absent = [name for name in names if name not in declared]
        return text.format(joint.join(absent)) if absent else ""

    alone = "the shared layer reads {} there, which its record lacks: debug mode says so"
    broken = "broken in this release: its record lacks {}, as debug mode and the audit say"
    return Kind(
        backend,
        alone=lacking(alone, " and ", "decode", "seq_lens"),
        broken=lacking(broken, ", ", "num_decodes", "num_prefills", "num_decode_tokens"),
    )


_SINGLE, _UNIFORM = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE, AttentionCGSupport.UNIFORM_BATCH
_FP8 = MappingProxyType({"cache_dtype": "fp8_ds_mla", "heads": 64})

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "dense_single": Kind(dense_backend("SINGLE_ONLY", _SINGLE)),
        "dense_uniform": Kind(dense_backend("UNIFORM", _UNIFORM)),
        "dense_varlen": Kind(dense_backend("VARLEN", AttentionCGSupport.ALWAYS)),
        "sparse": Kind(sparse_backend(uniform=False)),
        "sparse_uniform": Kind(sparse_backend(uniform=True)),
        "indexer_native": Kind(indexer_backend(), is_indexer=True),
        "indexer_flattened": Kind(indexer_backend(flattened=True), is_indexer=True),
        "indexer_varlen": Kind(indexer_backend(varlen=True), is_indexer=True),
        "indexer_compressed": Kind(indexer_backend(flattened=True), ratio=COMPRESSED, is_indexer=True),
        "rocm_sparse": _by_record(
            rocm_aiter_mla_sparse.ROCMAiterMLASparseBackend, rocm_aiter_mla_sparse.ROCMAiterMLASparseMetadata
        ),
        "flashmla_sparse": Kind(flashmla_sparse.FlashMLASparseBackend),
        "flashmla_sparse_fp8": Kind(flashmla_sparse.FlashMLASparseBackend, changes=_FP8),
        "xpu_sparse": _by_record(xpu_mla_sparse.XPUMLASparseBackend, xpu_mla_sparse.XPUMLASparseMetadata),
    }
)
"""Each builder by name."""
