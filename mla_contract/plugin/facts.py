"""Numbers of the configuration, read from a builder and its VllmConfig where they can be seen."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from mla_contract.adapters.release import behaviour_of
from mla_contract.contract.step.facts import Facts
from mla_contract.profiles.installed import installed_release


def facts_of(builder: Any, config: Any = None, group_spec: Any = None, *, packed: bool = False) -> Facts:
    """Return what a builder and its configuration say; whatever cannot be seen stays unknown.

    Args:
        builder: The metadata builder.
        config: The VllmConfig; the builder's own by default.
        group_spec: The spec of the cache manager's blocks, of which the builder may see parts.
        packed: Whether block table and slots count different blocks; then nothing is said of blocks.

    Sync: none
    """
    config = getattr(builder, "vllm_config", None) if config is None else config
    spec = getattr(builder, "kv_cache_spec", None)
    compress_ratio = _int(spec, "tokens_per_state") or 1
    block_size = None if packed or compress_ratio != 1 else _int(spec, "block_size")
    parallel = getattr(config, "parallel_config", None)
    dcp_size = _int(parallel, "decode_context_parallel_size") or 1
    pcp_size = _int(parallel, "prefill_context_parallel_size") or 1
    found = Facts(
        kernel_block_size=block_size,
        num_blocks=_num_blocks(config, group_spec, block_size),
        decode_threshold=_int(builder, "reorder_batch_threshold"),
        uniform_decodes=_uniform_decodes(builder),
        short_extends_are_decodes=_no(builder, "use_pcp"),
        dcp_size=dcp_size,
        dcp_rank=_rank("get_dcp_group") if dcp_size > 1 else 0,
        dcp_interleave=_int(parallel, "cp_kv_cache_interleave_size") or 1,
        pcp_size=pcp_size,
        max_num_seqs=_int(getattr(config, "scheduler_config", None), "max_num_seqs"),
        max_capture_size=_int(getattr(config, "compilation_config", None), "max_cudagraph_capture_size"),
        next_n=_next_n(config),
        capturing=False,
        device_lens_differ=bool(
            getattr(getattr(config, "speculative_config", None), "enable_adaptive_verification", False)
        ),
        context_rows=_int(builder, "chunked_prefill_workspace_size"),
        compress_ratio=compress_ratio,
        indexer_rows=_int(builder, "max_prefill_buffer_size"),
        logits_budget_bytes=_logits_budget(builder),
        topk_tokens=_int(getattr(getattr(config, "model_config", None), "hf_text_config", None), "index_topk"),
        padding_may_prefill=_padding_may_prefill(),
    )
    return _with_own(found, builder)


OWN_FACTS = (
    "uniform_decodes",
    "short_extends_are_decodes",
    "max_num_seqs",
    "max_capture_size",
    "buffer_rows",
    "context_rows",
    "gather_by_page",
    "indexer_rows",
    "logits_budget_bytes",
)
"""What a builder whose configuration has ``facts`` may say beyond what vLLM's attributes tell."""


def _with_own(found: Facts, builder: Any) -> Facts:
    """Return facts with what the builder's own configuration knows, where nothing else does."""
    own = getattr(getattr(builder, "config", None), "facts", None)
    if not isinstance(own, Facts):
        return found
    return replace(found, **{name: getattr(own, name) for name in OWN_FACTS if getattr(found, name) is None})


def _uniform_decodes(builder: Any) -> bool | None:
    """Return whether decodes must have one length, by what vLLM's builders hand to the shared split.

    Source: vLLM 0.32.0 model_executor/layers/attention/mla_attention.py and sparse_mla_attention.py,
        v1/attention/backends/mla/indexer.py.
    """
    support = getattr(getattr(builder, "query_len_support", None), "name", None)
    if isinstance(support, str):
        return support != "VARLEN"
    uniform = getattr(builder, "require_uniform_decodes", None)
    if isinstance(uniform, bool):
        return uniform
    each_length = getattr(builder, "use_flattening", None), getattr(builder, "supports_varlen", None)
    return not any(each_length) if all(isinstance(one, bool) for one in each_length) else None


def _no(owner: Any, name: str) -> bool | None:
    """Return the contrary of a flag, or None where there is none."""
    value = getattr(owner, name, None)
    return not value if isinstance(value, bool) else None


def _logits_budget(builder: Any) -> int | None:
    """Return the bytes that a logits matrix of an indexer's builder may take, or None for other builders.

    Source: vLLM 0.32.0 v1/attention/backends/mla/indexer.py.
    """
    if _int(builder, "max_prefill_buffer_size") is None:
        return None
    try:
        from vllm import envs

        return int(envs.VLLM_SPARSE_INDEXER_MAX_LOGITS_MB) << 20
    except (ImportError, AttributeError):
        return None


@cache
def _padding_may_prefill() -> bool:
    """Return whether the installed release's split may count padding among the prefills; read once."""
    return behaviour_of(installed_release()).padding_starts_prefills


def _int(owner: Any, name: str) -> int | None:
    """Return an attribute that is a positive int, else None."""
    value = getattr(owner, name, None)
    return value if type(value) is int and value > 0 else None


def _num_blocks(config: Any, group_spec: Any, block_size: int | None) -> int | None:
    """Return the blocks of the cache, as the kernel counts them."""
    blocks = _int(getattr(config, "cache_config", None), "num_gpu_blocks")
    managed = _int(group_spec, "block_size")
    if blocks is None or managed is None or block_size is None or managed % block_size:
        return None
    return blocks * (managed // block_size)


def _next_n(config: Any) -> int | None:
    """Return the query tokens of a verified request: the drafts and one."""
    if config is None:
        return None
    speculative = getattr(config, "speculative_config", None)
    return 1 + (_int(speculative, "num_speculative_tokens") or 0)


def _rank(getter: str) -> int:
    """Return this process's rank in a group of vLLM's; 0 while the group is not there."""
    try:
        from vllm.distributed import parallel_state

        rank: int = getattr(parallel_state, getter)().rank_in_group
        return rank
    except (ImportError, AttributeError, AssertionError):
        return 0
