"""vLLM's own planning of one batch, function by function, on host tensors: what ``plan_batch`` is timed against."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from vllm.model_executor.layers.attention.mla_attention import build_mla_chunked_context_metadata
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.mla import indexer
from vllm.v1.attention.backends.utils import (
    get_dcp_local_seq_lens,
    reorder_batch_to_split_decodes_and_prefills,
    split_decodes_and_prefills,
)
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.plan import PlanConfig


class _NoSpeculation:
    """The configuration that the decode expansion asks for."""

    speculative_config = None


class _Step:
    """What the runner knows of the requests before a step, as its preparation of inputs reads it."""

    def __init__(self, shape: BatchShape) -> None:
        self.req_ids = [str(row) for row in range(shape.num_reqs)]
        self.num_scheduled_tokens = dict(zip(self.req_ids, shape.query_lens.tolist(), strict=True))
        self.query_lens = shape.query_lens.astype(np.int32)
        self.num_computed_tokens_cpu = shape.context_lens.copy()
        self.num_prompt_tokens = np.where(shape.query_lens <= 2, shape.context_lens, shape.seq_lens)
        self.arange_np = np.arange(max(shape.num_actual_tokens, shape.num_reqs) + 1, dtype=np.int64)
        self.query_pos = np.zeros(shape.num_actual_tokens, dtype=np.int64)


class VllmPlans:
    """One batch, and vLLM's functions for it; tensors that its runner keeps are made beforehand and not timed.

    Kernels are replaced by nothing, since they run on the device: the indexer's per-token key ranges, which our plan
    does contain, cost vLLM nothing here.
    """

    def __init__(self, shape: BatchShape, config: PlanConfig, *, flatten: bool) -> None:
        assert config.indexer_states is not None
        assert config.workspace_rows is not None
        self.config, self.flatten = config, flatten
        self.common = _common(shape)
        self.lens = torch.tensor(shape.query_lens)
        self.seq_lens = torch.tensor(shape.seq_lens)
        self.builder = _bare_builder(max(shape.num_actual_tokens, shape.num_reqs) + 1)
        self.workspace = torch.empty(0)
        self.step = _Step(shape)
        indexer._BUILD_PREFILL_CHUNK_METADATA_KERNEL = _no_kernel

    def order(self) -> bool:
        """Return whether rows had to move: they have not, since the batch is in order."""
        moved: bool = reorder_batch_to_split_decodes_and_prefills(
            cast(Any, self.step), cast(Any, self.step), self.config.decode_threshold
        )
        return moved

    def ragged(self) -> Any:
        """Return owners and positions of tokens, as the runner's preparation of inputs computes them."""
        step = self.step
        owners = np.repeat(step.arange_np[: len(step.query_lens)], step.query_lens)
        sums = GPUModelRunner._get_cumsum_and_arange(cast(Any, step), step.query_lens, step.query_pos)
        return owners, step.num_computed_tokens_cpu[owners] + step.query_pos[: sums[-1]]

    def split(self) -> tuple[int, int, int, int]:
        """Return the counts."""
        config = self.config
        counts: tuple[int, int, int, int] = split_decodes_and_prefills(
            self.common, config.decode_threshold, config.require_uniform, config.treat_short_extends_as_decodes
        )
        return counts

    def context(self, num_decodes: int) -> Any:
        """Return the chunked context of the prefills."""
        start_loc = self.common.query_start_loc_cpu[num_decodes:] - self.common.query_start_loc_cpu[num_decodes]
        sharing = self.config.parallel
        return build_mla_chunked_context_metadata(
            context_lens_cpu=(self.seq_lens - self.lens)[num_decodes:],
            prefill_query_start_loc_cpu=start_loc,
            chunked_prefill_workspace=self.workspace,
            chunked_prefill_workspace_size=self.config.workspace_rows or 0,
            block_size=self.config.block_size,
            align_chunk_to_block=True,
            device=torch.device("cpu"),
            dcp_world_size=sharing.size,
            dcp_local_block_size=sharing.interleave,
            dcp_virtual_block_size=sharing.span,
        )

    def chunks(self, num_decodes: int) -> list[Any]:
        """Return the indexer's prefill chunks, without what its kernel writes."""
        common, sharing = self.common, self.config.parallel
        slices = indexer.DeepseekV32IndexerMetadataBuilder._split_indexer_prefill_chunks(
            self.seq_lens[num_decodes:],
            torch.diff(common.query_start_loc_cpu[num_decodes:]),
            self.config.indexer_states or 0,
            self.config.logits_bytes,
            request_offset=num_decodes,
        )
        chunks = (
            indexer.build_prefill_chunk_metadata(
                requests.start,
                requests.stop,
                common.query_start_loc,
                common.query_start_loc_cpu,
                self.seq_lens,
                self.seq_lens,
                self.seq_lens,
                common.block_table_tensor,
                1,
                query_slice=queries,
                skip_kv_gather=queries.start > 0,
                dcp_rank=sharing.rank,
                dcp_world_size=sharing.size,
                cp_kv_cache_interleave_size=sharing.interleave,
            )
            for requests, queries in slices
        )
        return [chunk for chunk in chunks if chunk is not None]

    def decode(self, num_decodes: int, num_tokens: int) -> Any:
        """Return the per-token lengths of the decodes."""
        lens = torch.diff(self.common.query_start_loc_cpu[: num_decodes + 1])
        rows = self.builder._prepare_decode_tensors(
            seq_lens=self.seq_lens[:num_decodes],
            block_table=self.common.block_table_tensor[:num_decodes],
            decode_lens=lens,
            decode_lens_cpu=lens,
            query_start_loc=self.common.query_start_loc[:num_decodes],
            num_decodes=num_decodes,
            num_decode_tokens=num_tokens,
            use_native=not self.flatten,
            next_n=max(2, self.config.decode_threshold),
            max_decode_len=int(lens.max().item()),
        )
        sharing = self.config.parallel
        if sharing.size == 1:
            return rows[0], rows[0]
        return rows[0], get_dcp_local_seq_lens(rows[0], sharing.size, sharing.rank, sharing.interleave)

    def all(self) -> tuple[Any, ...]:
        """Plan the batch: order, tokens, a split in each of the two builders, then each part that the batch has."""
        self.order()
        self.ragged()
        self.split()
        num_decodes, num_prefills, num_tokens, _ = counts = self.split()
        decode = self.decode(num_decodes, num_tokens) if num_decodes else None
        if not num_prefills:
            return counts, decode
        return counts, decode, self.context(num_decodes), self.chunks(num_decodes)


def _no_kernel(*inputs: Any, **more: Any) -> None:
    """Stands where a kernel would be launched."""


def _common(shape: BatchShape) -> Any:
    """Return vLLM's common batch on the host."""
    start_loc, seq_lens = torch.tensor(shape.query_start_loc), torch.tensor(shape.seq_lens)
    return CommonAttentionMetadata(
        query_start_loc=start_loc,
        query_start_loc_cpu=start_loc,
        seq_lens=seq_lens,
        num_reqs=shape.num_reqs,
        num_actual_tokens=shape.num_actual_tokens,
        max_query_len=shape.max_query_len,
        max_seq_len=int(shape.seq_lens.max()),
        block_table_tensor=torch.zeros((shape.num_reqs, 1), dtype=torch.int32),
        slot_mapping=torch.zeros(shape.num_actual_tokens, dtype=torch.int64),
        seq_lens_cpu_upper_bound=seq_lens,
    )


def _bare_builder(num_rows: int) -> Any:
    """Return a builder with the buffers that the decode expansion writes, and no engine behind it."""
    builder: Any = object.__new__(indexer.DeepseekV32IndexerMetadataBuilder)
    builder.vllm_config = _NoSpeculation()
    builder.supports_varlen = True  # takes the branch in torch instead of a kernel
    for name in ("decode_seq_lens_buffer", "decode_lens_buffer"):
        setattr(builder, name, torch.zeros(num_rows, dtype=torch.int32))
    builder.arange_buffer = torch.arange(num_rows, dtype=torch.int32)
    builder.offsets_buffer = torch.arange(64, dtype=torch.int32)
    builder.expanded_block_table_buffer = torch.zeros((num_rows, 1), dtype=torch.int32)
    return builder
