"""PyTorch bodies of the kernels that vLLM's sparse builders launch, as fast as they go on CPU tensors.

They are registered the way that vLLM offers to platforms without a GPU, so that its builders do on the host what they
leave to the device elsewhere. Owners of gathered keys are left out: ours are expanded when somebody reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from vllm.triton_utils.dispatcher import register_kernels

ARANGE = torch.arange(1 << 16, dtype=torch.int32)
"""Row numbers, made once."""


def token_request_mapping(
    query_start_loc: Any, output: Any, num_reqs: int, num_mapped: int, num_tokens: int, **launch: Any
) -> None:
    """Write the request of each token; tokens behind the mapped ones belong to request 0."""
    torch.bucketize(ARANGE[:num_mapped], query_start_loc[1:], right=True, out_int32=True, out=output[:num_mapped])
    if num_tokens > num_mapped:
        output[num_mapped:num_tokens] = 0


def nothing(*inputs: Any, **launch: Any) -> None:
    """Stands where a kernel would be launched that only a device runs."""


def sparse_seqlen(seq_lens: Any, query_start_loc: Any, output: Any, topk: int, block: int, **launch: Any) -> None:
    """Write how many keys each token reads: position and one, at most top-k; 0 on padding requests."""
    ends = query_start_loc[1:]
    shift = torch.repeat_interleave(seq_lens - ends, ends - query_start_loc[:-1], output_size=len(output))
    torch.add(shift, ARANGE[1 : len(output) + 1], out=output)
    output.clamp_(max=topk)


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
    """Write the key range of each query of a whole chunk, on one rank."""
    lens = query_start_loc[1:] - query_start_loc[:-1]
    num_tokens = slice_stop - slice_start
    bases = row_start_cu[: len(lens)]
    row_starts.copy_(torch.repeat_interleave(bases, lens, output_size=num_tokens))
    shift = torch.repeat_interleave(bases + seq_lens - query_start_loc[1:], lens, output_size=num_tokens)
    torch.add(shift, ARANGE[1 : num_tokens + 1], out=row_ends)


OWNERS = "vllm.v1.attention.ops.metadata._token_request_mapping_kernel"
"""The one kernel of the shared builder."""
KERNELS: Mapping[str, Callable[..., None]] = {
    OWNERS: token_request_mapping,
    "vllm.v1.attention.backends.mla.rocm_aiter_mla_sparse.generate_sparse_seqlen_kernel": sparse_seqlen,
    "vllm.v1.attention.backends.mla.indexer.BuildPrefillChunkMetadataKernel.kernel": prefill_chunk_metadata,
}
"""Body of each kernel, by its name."""


def install() -> None:
    """Register every body; builders must have been imported."""
    register_kernels(KERNELS)
