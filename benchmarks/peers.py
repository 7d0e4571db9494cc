"""Kernels of other libraries, run on the benchmarks' own inputs where a library is at hand."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mla_contract.contract.schema.provider import ChunkLogits, PagedLogits, SparseAttention

FlashMla = Callable[[SparseAttention], Tensor]

LIBRARY = "_flashmla_C.abi3.so"
"""FlashMLA's operators as vLLM's CUDA wheels hold them. They fit the PyTorch release of that wheel alone."""

HEADS = 64
"""FlashMLA's sparse kernel takes query heads in multiples of this."""


def find_flash_mla(given: Path | None) -> Path | None:
    """Return the library that is given, or an installed vLLM's, or None."""
    if given is not None:
        return given
    vllm = find_spec("vllm")
    places = [] if vllm is None else [Path(folder) / LIBRARY for folder in vllm.submodule_search_locations or ()]
    return next((place for place in places if place.exists()), None)


def load_flash_mla(library: Path) -> FlashMla:
    """Return FlashMLA's sparse attention over rows that all have equally many entries.

    Source: the operator's schema, ``torch.ops._flashmla_C.sparse_prefill_fwd``.
    """
    torch.ops.load_library(str(library))

    def run(inputs: SparseAttention) -> Tensor:
        rows, latent = inputs.q.shape[0], inputs.out.shape[2]
        kv, indices = inputs.kv_cache.unsqueeze(1), inputs.kv_indices.view(rows, 1, -1)
        results = torch.ops._flashmla_C.sparse_prefill_fwd(
            inputs.q, kv, indices, inputs.softmax_scale, latent, None, None, inputs.out
        )
        out: Tensor = results[0]
        return out

    return run


class DeepGemm:
    """The indexer's fp8 logits of DeepGEMM. Source: the signatures of its bindings, release 2.5."""

    def __init__(self, module: Any) -> None:
        """Keep the library's module."""
        self._module = module

    def chunk(self, inputs: ChunkLogits) -> Tensor:
        """Return a chunk's logits; outside the windows they are unspecified."""
        if inputs.k_scale is None:
            raise ValueError("k_scale is None: DeepGEMM's keys are fp8 with a scale each")
        keys = inputs.k, inputs.k_scale.view(-1)
        found: Tensor = self._module.fp8_mqa_logits(
            inputs.q, keys, inputs.weights, inputs.starts, inputs.ends, clean_logits=False
        )
        return found

    def paged(self, inputs: PagedLogits) -> Callable[[], Tensor]:
        """Return a call that scores a batch, with its schedule made ahead as a builder does."""
        next_n, block_size = inputs.q.shape[1], inputs.cache.shape[1]
        before = torch.arange(next_n - 1, -1, -1, device=inputs.q.device, dtype=torch.int32)
        lens = (inputs.context_lens.view(-1, 1) - before).contiguous()
        units = torch.cuda.get_device_properties(inputs.q.device).multi_processor_count
        schedule = self._module.get_paged_mqa_logits_metadata(lens, block_size, units)
        cache = inputs.cache.unsqueeze(2)

        def run() -> Tensor:
            found: Tensor = self._module.fp8_paged_mqa_logits(
                inputs.q, cache, inputs.weights, lens, inputs.block_table, schedule, inputs.max_model_len
            )
            return found

        return run


def find_deep_gemm() -> DeepGemm | None:
    """Return DeepGEMM, alone or within an installed vLLM, or None."""
    if find_spec("deep_gemm"):
        return DeepGemm(import_module("deep_gemm"))
    if find_spec("vllm") and find_spec("vllm.third_party.deep_gemm"):
        return DeepGemm(import_module("vllm.third_party.deep_gemm"))
    return None
