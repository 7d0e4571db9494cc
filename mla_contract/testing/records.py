"""Metadata records with the members of vLLM 0.33's, as plain dataclasses: what the shipped suites build and break."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass
class PlainBatch:
    """The common batch."""

    query_start_loc: Tensor
    query_start_loc_cpu: Tensor
    seq_lens: Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: Tensor
    slot_mapping: Tensor
    causal: bool | Tensor = True
    dcp_local_seq_lens: Tensor | None = None
    positions: Tensor | None = None
    is_prefilling: Tensor | None = None
    seq_lens_cpu_upper_bound: Tensor | None = None
    rswa_prefix_lens: Tensor | None = None


@dataclass
class PlainContextChunk:
    """One chunk of context, since 0.28."""

    index: int
    request_slice: slice
    token_slice: slice
    continuation_token_end: int
    is_continuation: bool
    num_context_tokens: int
    query_start_loc: Tensor
    max_query_len: int
    cu_seq_lens: Tensor
    starts: Tensor
    max_seq_len: int
    seq_lens: Tensor
    token_to_seq: Tensor
    all_rows_active: bool
    padded_local_seq_lens: list[int] | None = None
    local_context_lens_allranks: list[list[int]] | None = None
    padded_local_cu_seq_lens: Tensor | None = None
    padded_local_token_to_seq: Tensor | None = None
    num_local_context_tokens: int = 0
    local_starts: list[int] | None = None


@dataclass
class PlainChunkedContext:
    """Chunked context since 0.28."""

    context_lens: Tensor
    workspace: Tensor
    chunks: list[PlainContextChunk]
    context_lens_list: list[int]
    empty_token_slices: list[slice]


@dataclass
class PlainFieldContext:
    """Chunked context up to 0.27."""

    cu_seq_lens: Tensor
    starts: Tensor
    seq_tot: list[int]
    max_seq_lens: list[int]
    seq_lens: Tensor
    workspace: Tensor
    token_to_seq: Tensor
    chunk_total_token: list[int]
    has_empty_context: list[bool]
    padded_local_chunk_seq_lens: list[list[int]] | None = None
    local_context_lens_allranks: list[list[int]] | None = None
    padded_local_cu_seq_lens: Tensor | None = None
    cu_seq_lens_lst: list[list[int]] | None = None
    chunk_size: int | None = None


@dataclass
class PlainPrefill:
    """The prefill record."""

    block_table: Tensor
    query_start_loc: Tensor
    max_query_len: int
    chunked_context: PlainChunkedContext | PlainFieldContext | None = None
    q_data_type: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    query_lens_cpu: Tensor | None = None
    use_dense_mha: bool = False
    topk_mask_workspace: Tensor | None = None


@dataclass
class PlainDecode:
    """The dense decode record."""

    block_table: Tensor
    seq_lens: Tensor
    dcp_tot_seq_lens: Tensor | None = None


@dataclass
class PlainDense:
    """Dense MLA metadata."""

    num_reqs: int
    max_query_len: int
    max_seq_len: int
    num_actual_tokens: int
    query_start_loc: Tensor
    slot_mapping: Tensor
    num_decodes: int
    num_decode_tokens: int
    num_prefills: int
    prefill: PlainPrefill | None
    decode: PlainDecode | None


@dataclass
class PlainSparse(PlainDense):
    """Sparse MLA metadata."""

    block_table: Tensor
    req_id_per_token: Tensor
    seq_lens: Tensor
    block_size: int
    topk_tokens: int
    decode_max_query_len: int
    prefill_max_seq_len: int


@dataclass
class PlainAiter(PlainSparse):
    """Sparse metadata with aiter's tables."""

    qo_indptr: Tensor | None
    paged_kv_last_page_len: Tensor | None
    paged_kv_indices: Tensor | None
    paged_kv_indptr: Tensor | None
    attn_out_dtype: torch.dtype | None
    work_meta_data: Tensor | None = None
    work_indptr: Tensor | None = None
    work_info_set: Tensor | None = None
    reduce_indptr: Tensor | None = None
    reduce_final_map: Tensor | None = None
    reduce_partial_map: Tensor | None = None


@dataclass
class PlainIndexerChunk:
    """One prefill chunk of the indexer."""

    block_table: Tensor
    cu_seqlen_ks: Tensor
    cu_seqlen_ke: Tensor
    cu_seq_lens: Tensor
    token_to_seq: Tensor
    total_seq_lens: int
    token_start: int
    token_end: int
    num_reqs: int
    skip_kv_gather: bool = False
    local_cu_seq_lens: Tensor | None = None
    local_total_seq_lens: int = 0
    max_local_total_seq_lens: int = 0


@dataclass
class PlainIndexerPrefill:
    """The indexer's prefill part."""

    chunks: Sequence[PlainIndexerChunk]


@dataclass
class PlainIndexerDecode:
    """The indexer's decode part."""

    block_table: Tensor
    seq_lens: Tensor
    decode_lens: Tensor
    requires_padding: bool
    schedule_metadata: Tensor
    global_seq_lens: Tensor | None = None


@dataclass
class PlainIndexer:
    """The indexer's metadata."""

    seq_lens: Tensor
    max_seq_len: int
    slot_mapping: Tensor
    num_decodes: int
    num_decode_tokens: int
    num_prefills: int
    num_prefill_tokens: int
    decode: PlainIndexerDecode | None
    prefill: PlainIndexerPrefill | None
