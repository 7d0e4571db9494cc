"""vLLM's sparse builders without an engine: buffers and settings are set by hand, for CPU tensors on one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.layers.attention import sparse_mla_attention as shared
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.mla import indexer
from vllm.v1.attention.backends.mla import rocm_aiter_mla_sparse as rocm

from mla_contract.backends.sparse.config import SparseConfig


class _NoPrefillKernel:
    """Prefill backend that prepares nothing."""

    def prepare_metadata(self, prefill: object) -> None:
        """Do nothing."""


@dataclass
class _Settings:
    """The part of vLLM's configuration that the builders ask for."""

    hisparse_config: None = None
    sparse_mla_force_mqa: bool = False
    speculative_config: None = None
    cudagraph_mode: None = None

    @property
    def attention_config(self) -> _Settings:
        """Return itself."""
        return self

    @property
    def compilation_config(self) -> _Settings:
        """Return itself."""
        return self


@dataclass
class _Model:
    """The model's element type, and the cache's block size."""

    dtype: torch.dtype = torch.bfloat16
    block_size: int = 64
    num_states: int = 64


@dataclass
class _Dims:
    """Widths of a cached row."""

    kv_lora_rank: int = 512
    qk_rope_head_dim: int = 64


def _ints(*sizes: int) -> torch.Tensor:
    return torch.zeros(*sizes, dtype=torch.int32)


def _bare(cls: type, record: type, config: SparseConfig) -> Any:
    """Return a builder of a class that derives from the shared one."""
    builder: Any = object.__new__(cls)
    builder.metadata_cls = record
    builder.vllm_config, builder.model_config, builder.kv_cache_spec = _Settings(), _Model(), _Model()
    builder.device, builder.topk_tokens, builder.reorder_batch_threshold = torch.device("cpu"), config.topk_tokens, 1
    builder.use_pcp, builder.dcp_world_size, builder.dcp_manager = False, 1, None
    builder.dcp_local_block_size = builder.dcp_virtual_block_size = builder.cp_kv_cache_interleave_size = 1
    builder.chunked_prefill_workspace_size = config.context_rows
    builder.chunked_prefill_workspace = torch.empty(config.context_rows or 0, 576, dtype=torch.bfloat16)
    builder._context_lens_cpu = _ints(config.max_num_seqs)
    builder.topk_mask_workspace, builder._prefill_backend = None, _NoPrefillKernel()
    builder.req_id_per_token_buffer = _ints(config.max_num_batched_tokens)
    return builder


def shared_builder(config: SparseConfig) -> Any:
    """Return the builder that sparse backends share."""
    return _bare(shared.SparseMLACommonMetadataBuilder, shared.SparseMLACommonMetadata, config)


def rocm_builder(config: SparseConfig) -> Any:
    """Return the ROCm sparse builder, without persistent work."""
    builder = _bare(rocm.ROCMAiterMLASparseMetadataBuilder, rocm.ROCMAiterMLASparseMetadata, config)
    builder.model_dtype = builder._mla_kv_dtype = torch.bfloat16
    builder.kv_cache_dtype, builder._use_persistent_metadata, builder.mla_dims = "auto", False, _Dims()
    rows = config.max_num_batched_tokens
    builder.qo_indptr = torch.arange(rows + 1, dtype=torch.int32)
    builder.paged_kv_last_page_len = torch.ones(rows, dtype=torch.int32)
    builder.paged_kv_indices = _ints(rows * config.topk_tokens)
    builder.paged_kv_indptr = _ints(rows + 1)
    builder._prev_req_extent = builder._prev_indices_extent = 0
    return builder


def indexer_builder(config: SparseConfig, columns: int) -> Any:
    """Return the indexer's builder; ``columns`` are those of the block table."""
    builder: Any = object.__new__(indexer.DeepseekV32IndexerMetadataBuilder)
    builder.vllm_config, builder.kv_cache_spec, builder.device = _Settings(), _Model(), torch.device("cpu")
    builder.compress_ratio = builder.dcp_world_size = builder.decode_threshold = builder.tp_size = 1
    builder.use_pcp, builder.pcp_world_size, builder.dcp_rank = False, 1, 0
    builder.cp_kv_cache_interleave_size = builder.compressed_cp_interleave_size = 1
    builder.use_flattening = builder.supports_varlen = False
    builder.num_speculative_tokens, builder.max_prefill_buffer_size = 0, config.gather_rows
    rows = config.max_num_batched_tokens
    for name in ("decode_seq_lens", "decode_lens", "per_req_decode_lens", "global_decode_seq_lens", "decode_indices"):
        setattr(builder, f"{name}_buffer", _ints(rows))
    builder.arange_buffer, builder.offsets_buffer = torch.arange(rows, dtype=torch.int32), _ints(1)
    builder.expanded_block_table_buffer, builder.scheduler_metadata_buffer = _ints(rows, columns), _ints(2, 2)
    return builder


def run(builder: Any, of: CommonAttentionMetadata) -> Any:
    """Build a record as in a new step: owners that the batch keeps for other builders are forgotten."""
    of._token_to_req_indices_cache = None
    return builder.build(0, of)
