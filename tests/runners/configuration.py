"""Stand-ins for vLLM's configuration: the real names of what its builders and runners read, and nothing else.

A name that is missing here raises at once; nothing answers by default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.distributed import parallel_state

from tests.runners.releases import find

HEADS = 4
LATENT, ROPE, NOPE, VALUE = 512, 64, 128, 128
CAPTURE_SIZES = (1, 2, 4, 8, 12, 16, 24)
"""Sizes of captured graphs, in tokens; before they are rounded for drafts."""

_MANAGER = find("vllm.v1.attention.ops.dcp", "MLADCPManager") or find(
    "vllm.v1.attention.ops.dcp_utils", "MLADCPManager", object
)
LAYER = "model.layers.0.attn"
INDEXER_LAYER = "model.layers.0.indexer"


@dataclass(frozen=True, slots=True)
class Setting:
    """What distinguishes one engine from another here.

    Attributes:
        drafts: Draft tokens of a decode.
        method: Who drafts; None without drafts.
        dcp_size: Ranks of decode context parallelism.
        dcp_rank: This rank.
        interleave: Consecutive tokens that a rank stores.
        block_size: Tokens of a block.
        max_model_len: Longest request, in tokens.
        max_num_seqs: Most requests of a step.
        max_num_batched_tokens: Most tokens of a step.
        topk: Keys that a token reads in sparse attention.
        heads: Attention heads.
        cache_dtype: Format of the cache.
    """

    drafts: int = 0
    method: str | None = None
    dcp_size: int = 1
    dcp_rank: int = 0
    interleave: int = 1
    block_size: int = 64
    max_model_len: int = 1024
    max_num_seqs: int = 12
    max_num_batched_tokens: int = 128
    topk: int = 64
    heads: int = HEADS
    cache_dtype: str = "auto"

    def capture_sizes(self) -> list[int]:
        """Return the captured sizes: multiples of a decode's tokens, as the engine makes them."""
        width = 1 + self.drafts
        return sorted({-(-size // width) * width for size in CAPTURE_SIZES})


class PrefillBackend:
    """Stands in for the prefill backend of a layer: it prepares nothing."""

    def get_name(self) -> str:
        """Return a name."""
        return "STAND_IN"

    def clone(self) -> PrefillBackend:
        """Return another."""
        return PrefillBackend()

    def prepare_metadata(self, prefill: object) -> None:
        """Do nothing."""


class ContextManager(_MANAGER):  # type: ignore[misc, valid-type]
    """Stands in for a layer's manager of gathered context: it gathers nothing."""

    def __init__(self) -> None:
        pass

    def init_kv_gather(self, workspace: object, rows: int) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class AttentionImpl:
    """Stands in for a layer's kernels: of them a builder asks two flags."""

    sinks: None = None
    use_aiter_sparse_mla: bool = False


@dataclass
class Layer:
    """Stands in for a layer of attention."""

    num_heads: int = HEADS
    q_lora_rank: None = None
    kv_lora_rank: int = LATENT
    qk_nope_head_dim: int = NOPE
    qk_rope_head_dim: int = ROPE
    v_head_dim: int = VALUE
    non_causal_multi_token_decode: bool = False
    impl: AttentionImpl = field(default_factory=AttentionImpl)
    prefill_backend: PrefillBackend = field(default_factory=PrefillBackend)
    dcp_manager: ContextManager = field(default_factory=ContextManager)


@dataclass(frozen=True)
class HFConfig:
    """Stands in for the model's own configuration."""

    index_topk: int
    architectures: tuple[str, ...] = ("DeepseekV32ForCausalLM",)
    model_type: str = "deepseek_v32"
    q_lora_rank: None = None
    kv_lora_rank: int = LATENT
    qk_nope_head_dim: int = NOPE
    qk_rope_head_dim: int = ROPE
    v_head_dim: int = VALUE
    index_n_heads: int = HEADS
    index_head_dim: int = 128


@dataclass(frozen=True, slots=True)
class ArchConfig:
    """Stands in for the sizes of the architecture."""

    total_num_attention_heads: int


@dataclass
class ModelConfig:
    """Stands in for vLLM's ModelConfig."""

    max_model_len: int
    heads: int
    hf_config: HFConfig
    dtype: torch.dtype = torch.bfloat16
    is_encoder_decoder: bool = False
    is_mm_prefix_lm: bool = False
    multimodal_config: None = None
    rswa_window: None = None

    @property
    def hf_text_config(self) -> HFConfig:
        """Return the same."""
        return self.hf_config

    @property
    def model_arch_config(self) -> ArchConfig:
        """Return the sizes."""
        return ArchConfig(self.heads)

    def get_num_attention_heads(self, parallel_config: object) -> int:
        """Return this rank's heads."""
        return self.heads

    def get_head_size(self) -> int:
        """Return the width of a cached row."""
        return LATENT + ROPE


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Stands in for vLLM's SchedulerConfig."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Stands in for vLLM's CacheConfig."""

    block_size: int
    cache_dtype: str
    num_gpu_blocks: int
    use_replayssm: bool = False
    use_kda_recoverssm: bool = False
    kv_sharing_fast_prefill: bool = False
    mamba_cache_mode: str = "none"


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """Stands in for vLLM's ParallelConfig."""

    decode_context_parallel_size: int
    cp_kv_cache_interleave_size: int
    prefill_context_parallel_size: int = 1
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    num_ubatches: int = 1
    use_ubatching: bool = False
    dcp_comm_backend: str = "ag_rs"


@dataclass(frozen=True, slots=True)
class PassConfig:
    """Stands in for vLLM's PassConfig."""

    enable_sp: bool = False


@dataclass(frozen=True, slots=True)
class CompilationConfig:
    """Stands in for vLLM's CompilationConfig."""

    static_forward_context: dict[str, Layer]
    cudagraph_capture_sizes: list[int]
    cudagraph_mode: Any = CUDAGraphMode.FULL_AND_PIECEWISE
    compile_sizes: tuple[int, ...] = ()
    cudagraph_specialize_lora: bool = False
    pass_config: PassConfig = field(default_factory=PassConfig)

    def is_attention_compiled_piecewise(self) -> bool:
        """Return True."""
        return True

    @property
    def max_cudagraph_capture_size(self) -> int:
        """Return the largest."""
        return self.cudagraph_capture_sizes[-1]


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Stands in for vLLM's AttentionConfig."""

    use_prefill_query_quantization: bool = False
    hisparse_config: None = None
    sparse_mla_force_mqa: bool = False
    sparse_mla_prefill_workspace_factor: int = 5
    use_fp4_indexer_cache: bool = False
    indexer_kv_dtype: str = "fp8"

    def resolve_indexer_kv_dtype(self, dtype: str) -> str:
        """Return the element type."""
        return dtype


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Stands in for vLLM's SpeculativeConfig."""

    num_speculative_tokens: int
    method: str
    parallel_drafting: bool = False
    enable_adaptive_verification: bool = False

    def uses_dynamic_speculative_decoding(self) -> bool:
        """Return False."""
        return False


@dataclass(frozen=True, slots=True)
class ObservabilityConfig:
    """Stands in for vLLM's ObservabilityConfig."""

    cudagraph_metrics: bool = False


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """Stands in for vLLM's KernelConfig."""

    enable_jit_warmup: bool = False


@dataclass
class EngineConfig:
    """Stands in for vLLM's VllmConfig."""

    model_config: ModelConfig
    scheduler_config: SchedulerConfig
    cache_config: CacheConfig
    parallel_config: ParallelConfig
    compilation_config: CompilationConfig
    speculative_config: SpeculativeConfig | None
    attention_config: AttentionConfig = field(default_factory=AttentionConfig)
    observability_config: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    kernel_config: KernelConfig = field(default_factory=KernelConfig)
    lora_config: None = None
    use_v2_model_runner: bool = True
    additional_config: dict[str, Any] = field(default_factory=dict)

    @property
    def num_speculative_tokens(self) -> int:
        """Return the draft tokens of a decode."""
        return 0 if self.speculative_config is None else self.speculative_config.num_speculative_tokens


@dataclass(frozen=True, slots=True)
class Group:
    """Stands in for a group of ranks."""

    world_size: int
    rank_in_group: int = 0
    is_first_rank: bool = True
    is_last_rank: bool = True


def engine_config(setting: Setting) -> EngineConfig:
    """Return a configuration, and set the ranks of this process to it."""
    grouped = setting.dcp_size > 1
    parallel_state._DCP = Group(setting.dcp_size, setting.dcp_rank) if grouped else None
    parallel_state._PP = Group(1)
    speculative = SpeculativeConfig(setting.drafts, setting.method) if setting.method is not None else None
    layer = Layer(num_heads=setting.heads)
    return EngineConfig(
        ModelConfig(setting.max_model_len, setting.heads, HFConfig(setting.topk)),
        SchedulerConfig(setting.max_num_seqs, setting.max_num_batched_tokens),
        CacheConfig(setting.block_size, setting.cache_dtype, num_blocks(setting)),
        ParallelConfig(setting.dcp_size, setting.interleave),
        CompilationConfig({LAYER: layer, INDEXER_LAYER: layer}, setting.capture_sizes()),
        speculative,
    )


def num_blocks(setting: Setting) -> int:
    """Return the blocks of a cache that holds every request at its longest, and the null block."""
    return setting.max_num_seqs * -(-setting.max_model_len // setting.block_size) + 1
