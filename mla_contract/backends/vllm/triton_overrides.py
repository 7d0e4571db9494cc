"""PyTorch bodies of Triton kernels that vLLM's own sparse builder launches, for third parties' builders on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor


def token_request_mapping(
    query_start_loc: Tensor, output: Tensor, num_reqs: int, num_mapped: int, num_tokens: int, **launch: Any
) -> None:
    """Write the request of each token; tokens behind the mapped ones belong to request 0.

    Source: vLLM 0.32.0 v1/attention/ops/metadata.py
    """
    token = torch.arange(num_tokens, dtype=query_start_loc.dtype)
    owner = torch.searchsorted(query_start_loc[1 : num_reqs + 1].contiguous(), token, right=True)
    owner = owner.clamp(max=num_reqs - 1)
    output[:num_tokens] = torch.where(token < num_mapped, owner, 0).to(output.dtype)


KERNELS: Mapping[str, Callable[..., None]] = MappingProxyType(
    {"vllm.v1.attention.ops.metadata._token_request_mapping_kernel": token_request_mapping}
)
"""Body of each kernel, by its name."""
