"""PyTorch bodies of the Triton kernels that vLLM's own builders launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from mla_contract.backends.vllm.triton_overrides import token_request_mapping


def prefill_chunk_metadata(
    query_start_loc: Any,
    seq_lens: Any,
    cu_seq_lens: Any,
    row_start_cu: Any,
    token_to_seq: Any,
    row_starts: Any,
    row_ends: Any,
    slice_start: int,
    slice_stop: int,
    *constants: Any,
    **launch: Any,
) -> None:
    """Write the key range of each query of a slice, and the owner of each key."""
    for row in range(len(query_start_loc) - 1):
        begin, end = int(query_start_loc[row]), int(query_start_loc[row + 1])
        context = int(seq_lens[row]) - (end - begin)
        base = int(row_start_cu[row])
        for query in range(max(begin, slice_start), min(end, slice_stop)):
            row_starts[query - slice_start] = base
            row_ends[query - slice_start] = base + context + query - begin + 1
        token_to_seq[int(cu_seq_lens[row]) : int(cu_seq_lens[row + 1])] = row


def quantise(source: Any, values: Any, scales: Any, group: int, *rest: Any, **launch: Any) -> None:
    """Quantise each group by its largest element."""
    parts = source.reshape(-1, group).float()
    scale = parts.abs().amax(-1).clamp(min=1e-10) / torch.finfo(values.dtype).max
    values.copy_((parts / scale[:, None]).reshape(values.shape).to(values.dtype))
    scales.copy_(scale.reshape(scales.shape))


KERNELS: Mapping[str, Callable[..., None]] = {
    "vllm.v1.attention.ops.metadata._token_request_mapping_kernel": token_request_mapping,
    "vllm.v1.attention.backends.mla.indexer.BuildPrefillChunkMetadataKernel.kernel": prefill_chunk_metadata,
    "vllm.model_executor.layers.quantization.utils.fp8_utils._per_token_group_quant_fp8": quantise,
}
"""Body of each kernel, by its name."""
