"""Put a module named ``aiter`` into ``sys.modules`` for the length of a ``with`` block."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from inspect import Signature
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from mla_contract.testing.aiter_double import decode, indexer, logits, planner, sparse, topk
from mla_contract.testing.aiter_double.chip import COMPUTE_UNITS, Arguments, Chip
from mla_contract.testing.aiter_double.signatures import RELEASES, signatures_of, without

Implementation = Callable[[Chip, Arguments], Any]

_IMPLEMENTATIONS: Mapping[str, Implementation] = MappingProxyType(
    {
        "mla_decode_fwd": decode.mla_decode_fwd,
        "get_meta_param": decode.get_meta_param,
        "mla_reduce_v1": decode.mla_reduce_v1,
        "get_mla_metadata_info_v1": planner.get_mla_metadata_info_v1,
        "get_mla_metadata_v1": planner.get_mla_metadata_v1,
        "indexer_k_quant_and_cache": indexer.indexer_k_quant_and_cache,
        "cp_gather_indexer_k_quant_cache": indexer.cp_gather_indexer_k_quant_cache,
        "fp8_mqa_logits": logits.fp8_mqa_logits,
        "flydsl_fp8_mqa_logits": logits.fp8_mqa_logits,
        "deepgemm_fp8_paged_mqa_logits": logits.deepgemm_fp8_paged_mqa_logits,
        "top_k_per_row_prefill": topk.top_k_per_row_prefill,
        "top_k_per_row_decode": topk.top_k_per_row_decode,
        "unified_attention_sparse_mla": sparse.unified_attention_sparse_mla,
    }
)

_TOP_LEVEL = ("aiter.ops.attention", "aiter.ops.cache", "aiter.ops.topk")
"""Modules whose functions aiter also exports at its top."""

_NOTHING: Mapping[str, Collection[str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Double:
    """An installed double.

    Attributes:
        module: The module ``aiter``.
        chip: What it pretends to be.
        calls: Name and arguments of every call so far.
    """

    module: ModuleType
    chip: Chip
    calls: list[tuple[str, Arguments]] = field(default_factory=list)

    def names(self) -> list[str]:
        """Return the names of the functions called so far, in order."""
        return [name for name, _ in self.calls]


@contextmanager
def install(
    release: str,
    arch: str,
    *,
    num_cus: int | None = None,
    lacking: Mapping[str, Collection[str]] = _NOTHING,
) -> Iterator[Double]:
    """Install the double, and take it away at the end; whatever was imported as ``aiter`` before comes back.

    Args:
        release: One of ``RELEASES``.
        arch: The GPU's name.
        num_cus: Its compute units; the real number by default.
        lacking: Parameters to take out of the signatures of some functions, by function name.

    Raises:
        ValueError: If the release is not known.
    """
    if release not in RELEASES:
        raise ValueError(f"release {release!r}: known are {', '.join(RELEASES)}")
    chip = Chip(release, arch, COMPUTE_UNITS.get(arch, 64) if num_cus is None else num_cus)
    double = Double(ModuleType("aiter"), chip)
    modules = _modules(double, lacking)
    saved = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "aiter"}
    for name in saved:
        del sys.modules[name]
    sys.modules.update(modules)
    try:
        yield double
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "aiter"]:
            del sys.modules[name]
        sys.modules.update(saved)


def _modules(double: Double, lacking: Mapping[str, Collection[str]]) -> dict[str, ModuleType]:
    """Return every module of the double by name."""
    modules = {"aiter": double.module}
    double.module.__version__ = double.chip.release  # type: ignore[attr-defined]
    for full, signature in signatures_of(double.chip).items():
        home, _, name = full.partition(":")
        function = _function(double, name, without(signature, lacking.get(name, ())))
        setattr(_module(modules, home), name, function)
        if home in _TOP_LEVEL:
            setattr(double.module, name, function)
    dtypes = _module(modules, "aiter.dtypes")
    named = {"fp8": double.chip.fp8, "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    for name, value in {**named, "d_dtypes": named}.items():
        setattr(dtypes, name, value)
    return modules


def _module(modules: dict[str, ModuleType], name: str) -> ModuleType:
    """Return a module, making it and its parents packages that hold it."""
    if name not in modules:
        modules[name] = ModuleType(name)
        parent, _, own = name.rpartition(".")
        setattr(_module(modules, parent), own, modules[name])
    for one in modules.values():
        one.__path__ = []
        one.__spec__ = ModuleSpec(one.__name__, None, is_package=True)
    return modules[name]


def _function(double: Double, name: str, signature: Signature) -> Callable[..., Any]:
    """Return a function with this signature that records its calls."""

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        double.calls.append((name, bound.arguments))
        if name not in _IMPLEMENTATIONS:
            raise NotImplementedError(f"the double has the signature of {name} only")
        return _IMPLEMENTATIONS[name](double.chip, bound.arguments)

    call.__name__ = call.__qualname__ = name
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
