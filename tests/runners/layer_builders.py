"""vLLM's builders of records that a layer of its own reads, each constructed by its own ``__init__``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import torch
from vllm.models.deepseek_v4 import compressor as paged
from vllm.models.deepseek_v4.sparse_mla import DeepseekV4FlashMLABackend
from vllm.models.deepseek_v41 import compressor as ring
from vllm.models.deepseek_v41.sparse_mla import DeepseekV4FlashMLABackend as DeepseekV41FlashMLABackend
from vllm.v1.attention.backends.mla import sparse_swa
from vllm.v1.kv_cache_interface import CircularBufferSpec, MLAAttentionSpec, SlidingWindowMLASpec
from vllm.v1.worker.utils import AttentionGroup

from tests.runners import configuration as plain
from tests.runners.configuration import LAYER, EngineConfig, Setting

WINDOW = 16
BLOCK = 256
RING = 8
"""Rows of a request's ring."""


@dataclass(frozen=True)
class HFConfig(plain.HFConfig):
    """Stands in for the configuration of a model with windows and compressed caches."""

    sliding_window: int = WINDOW
    compress_ratios: tuple[int, ...] = (1, 4, 128)


@dataclass(frozen=True, slots=True)
class SchedulerConfig(plain.SchedulerConfig):
    """Stands in for vLLM's SchedulerConfig."""

    async_scheduling: bool = False


@dataclass(frozen=True, slots=True)
class SpeculativeConfig(plain.SpeculativeConfig):
    """Stands in for vLLM's SpeculativeConfig."""

    def use_dspark(self) -> bool:
        """Return False."""
        return False


class WindowBackend(sparse_swa.DeepseekSparseSWABackend):  # type: ignore[misc]
    """vLLM's backend with the builder that it gives on CUDA; on a CPU it names one that takes over its kernels."""

    @staticmethod
    def get_builder_cls() -> type:
        """Return the builder."""
        builder: type = sparse_swa.DeepseekSparseSWAMetadataBuilder
        return builder


class OutOfTreeBackend(DeepseekV4FlashMLABackend):  # type: ignore[misc]
    """A backend of another package, whose builder returns a record class of its own."""

    @staticmethod
    def get_builder_cls() -> type:
        """Return a builder that fills another class."""
        return OutOfTreeBuilder


class OutOfTreeBuilder(DeepseekV4FlashMLABackend.get_builder_cls()):  # type: ignore[misc]
    """vLLM's builder, whose record is copied into a class that shares no base with vLLM's."""

    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Return the record of another package."""
        made = super().build(*args, **kwargs)
        return OutOfTreeRecord(**{one.name: getattr(made, one.name) for one in fields(OutOfTreeRecord)})


@dataclass
class OutOfTreeRecord:
    """What the layer reads of a compressed cache, in a class of another package."""

    query_start_loc: torch.Tensor
    slot_mapping: torch.Tensor
    block_table: torch.Tensor
    req_id_per_token: torch.Tensor
    block_size: int
    topk_tokens: int
    c128a_global_decode_topk_indices: torch.Tensor | None
    c128a_decode_topk_lens: torch.Tensor | None
    c128a_prefill_topk_indices: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Kind:
    """A builder.

    Attributes:
        backend: Its backend's class.
        spec_class: The spec of its cache.
        ratio: Tokens of a state.
        block_size: Tokens of a block.
    """

    backend: type
    spec_class: Any = MLAAttentionSpec
    ratio: int = 1
    block_size: int = BLOCK

    def setting(self, setting: Setting) -> Setting:
        """Return a setting as this builder wants it."""
        return replace(setting, block_size=self.block_size)

    def blocks(self, tokens: int) -> int:
        """Return the blocks of a request: a ring is one."""
        return 1 if self.spec_class is CircularBufferSpec else -(-tokens // self.block_size)

    def group(self, setting: Setting, config: EngineConfig) -> Any:
        """Return an attention group with a builder that its real ``__init__`` made."""
        made: dict[str, Any] = {"block_size": self.block_size, "num_kv_heads": 1, "head_size": 512}
        made["dtype"] = torch.bfloat16
        if self.spec_class is SlidingWindowMLASpec:
            made["sliding_window"] = WINDOW
        if self.spec_class is MLAAttentionSpec:
            made["tokens_per_state"] = self.ratio
        group = AttentionGroup(self.backend, [LAYER], self.spec_class(**made), 0)
        group.create_metadata_builders(config, torch.device("cpu"), self.block_size)
        return group


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "window": Kind(WindowBackend, SlidingWindowMLASpec, block_size=64),
        "compressed_4": Kind(DeepseekV4FlashMLABackend, ratio=4),
        "compressed_128": Kind(DeepseekV4FlashMLABackend, ratio=128),
        "compressed_out_of_tree": Kind(OutOfTreeBackend, ratio=128),
        "compressed_v41_1": Kind(DeepseekV41FlashMLABackend, block_size=128),
        "compressed_v41_2": Kind(DeepseekV41FlashMLABackend, ratio=2, block_size=128),
        "compressor": Kind(paged.CompressorBackend, SlidingWindowMLASpec, block_size=8),
        "compressor_ring": Kind(ring.CompressorBackend, CircularBufferSpec, block_size=RING),
    }
)
"""Each builder by name."""


def engine_config(setting: Setting) -> EngineConfig:
    """Return a configuration with what these builders read besides."""
    config = plain.engine_config(setting)
    config.model_config.hf_config = HFConfig(setting.topk)
    config.scheduler_config = SchedulerConfig(setting.max_num_seqs, setting.max_num_batched_tokens)
    if config.speculative_config is not None:
        config.speculative_config = SpeculativeConfig(setting.drafts, setting.method or "")
    return config
