"""What is registered in an engine process, once: attention backend, indexer op, indexer builder, and the CPU's gaps.

Source: the hooks were learnt from vLLM 0.32.0 v1/attention/backends/registry.py, model_executor/custom_op.py,
v1/attention/backends/mla/indexer.py, model_executor/models/deepseek_v2.py
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mla_contract.errors import InvalidContract
from mla_contract.profiles.installed import installed_release

SINCE = "0.30.0"
"""The first vLLM release that has what the modules below stand on."""

_BRIDGE = tuple(f"mla_contract.backends.vllm.{name}" for name in ("backend", "builders", "impl", "indexer", "platform"))

_registered: tuple[str, str] | None = None


def register(path: str, cache: str) -> None:
    """Register a backend; a second call changes nothing.

    Args:
        path: Path of the attention backend's class: ours, or anybody's.
        cache: How the indexer's cache stores keys, ``fp8`` or ``float``.

    Raises:
        InvalidContract: If vLLM's platform is a CPU's and not ours, so that it would refuse sparse MLA; if this vLLM
            lacks what is bound to; or if there is no such class.
    """
    global _registered
    if _registered == (path, cache):
        return
    _import_bridge()
    _impl_class(path)
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    # Asked of the class: an instance answers to every name.
    if current_platform.is_cpu() and not hasattr(type(current_platform), "takes_sparse_mla"):
        raise InvalidContract(
            "the CPU platform refuses sparse MLA, and ours was not asked: unset VLLM_TARGET_DEVICE, and let "
            "VLLM_PLUGINS, if it is set, name mla_contract"
        )
    register_backend(AttentionBackendEnum.CUSTOM, path)
    _register_indexer(path, cache, on_cpu=current_platform.is_cpu())
    _registered = path, cache


def _register_indexer(path: str, cache: str, *, on_cpu: bool) -> None:
    """Register the indexer op, and let the indexer's backend have our builder."""
    from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer
    from vllm.model_executor.models import deepseek_v2
    from vllm.v1.attention.backends.mla.indexer import DeepseekV32IndexerBackend

    from mla_contract.backends.vllm import indexer
    from mla_contract.backends.vllm.builders import IndexerEngineBuilder

    # Keys are written by the indexer: a backend whose class says nothing has them token after token.
    IndexerEngineBuilder.shuffled = getattr(_impl_class(path), "shuffled", False)
    SparseAttnIndexer.register_oot(indexer.EngineIndexer, name="SparseAttnIndexer")
    before = DeepseekV32IndexerBackend.get_builder_cls

    def get_builder_cls(cls: Any) -> Any:
        return IndexerEngineBuilder if cls is DeepseekV32IndexerBackend else before()

    DeepseekV32IndexerBackend.get_builder_cls = classmethod(get_builder_cls)
    if cache == "float":
        deepseek_v2.DeepseekV32IndexerCache = indexer.FloatIndexerCache
        deepseek_v2.per_token_group_quant_fp8 = indexer.keep_queries
    elif on_cpu:
        deepseek_v2.per_token_group_quant_fp8 = indexer.quantise_queries


def _import_bridge() -> None:
    """Import every module that is bound to vLLM: what an installed release lacks shows here, and nowhere later."""
    try:
        for name in _BRIDGE:
            import_module(name)
    except ImportError as error:
        raise InvalidContract(
            f"sparse MLA cannot be bound to this vLLM, {installed_release() or 'of unknown release'}: {error}; "
            f"vLLM {SINCE} is the first that has all of it"
        ) from error


def _impl_class(path: str) -> Any:
    """Return the impl of the attention backend at a path."""
    module, _, name = path.rpartition(".")
    try:
        backend = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidContract(f"the attention backend {module}:{name} cannot be imported: {error}") from error
    return backend.get_impl_cls()
