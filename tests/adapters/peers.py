"""vLLM's own planning functions: imported from the installed engine, or taken out of a release's sources."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

UTILS = "vllm/v1/attention/backends/utils.py"
LAYER = "vllm/model_executor/layers/attention/mla_attention.py"
INDEXER = "vllm/v1/attention/backends/mla/indexer.py"


@dataclass(frozen=True)
class Peer:
    """The functions of one release.

    Attributes:
        release: Its minor release.
        split: split_decodes_and_prefills.
        local: get_dcp_local_seq_lens.
        context: build_mla_chunked_context_metadata; None where only the cuts are compared.
        cuts: plan_mla_context_chunks; None before 0.28.
        indexer: The indexer's chunker.
    """

    release: str
    split: Callable[..., Any]
    local: Callable[..., Any]
    context: Callable[..., Any] | None
    cuts: Callable[..., Any] | None
    indexer: Callable[..., Any]


def imported_peer() -> Peer:
    """Return the functions of the installed engine."""
    import vllm
    from vllm.model_executor.layers.attention import mla_attention
    from vllm.v1.attention.backends import utils
    from vllm.v1.attention.backends.mla import indexer

    return Peer(
        release=".".join(vllm.__version__.split(".")[:2]),
        split=utils.split_decodes_and_prefills,
        local=utils.get_dcp_local_seq_lens,
        context=mla_attention.build_mla_chunked_context_metadata,
        cuts=mla_attention.plan_mla_context_chunks,
        indexer=indexer.DeepseekV32IndexerMetadataBuilder._split_indexer_prefill_chunks,
    )


def extracted_peer(tree: Path, release: str) -> Peer:
    """Return the functions of a source tree, compiled alone, without the rest of vLLM."""
    minor = int(release.split(".")[1])
    names = _extract(tree / UTILS, ("split_decodes_and_prefills", "get_dcp_local_seq_lens"), {})
    layer: dict[str, Any] = {}
    if minor >= 26:
        wanted = ("build_mla_chunked_context_metadata", "_ContextChunkPlan", "plan_mla_context_chunks")
        layer = _extract(tree / LAYER, wanted, names)
    chunker = ("split_indexer_prefill_chunks", "_split_indexer_prefill_chunks")
    found = _extract(tree / INDEXER, chunker, {})
    return Peer(
        release=release,
        split=names["split_decodes_and_prefills"],
        local=names["get_dcp_local_seq_lens"],
        context=layer.get("build_mla_chunked_context_metadata") if minor < 28 else None,
        cuts=layer.get("plan_mla_context_chunks"),
        indexer=next(found[name] for name in chunker if name in found),
    )


class _Unpinned(ast.NodeTransformer):
    """Drops ``pin_memory``, which needs a device, and decorators of methods."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Return the call without the keyword."""
        self.generic_visit(node)
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != "pin_memory"]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Return the function without decorators."""
        self.generic_visit(node)
        node.decorator_list = []
        return node


class _Record:
    """A record that keeps what it was made from."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class _PrefillMetadata:
    """Stands where the layer's metadata class stands."""

    ChunkedContextMetadata = _Record


def _extract(path: Path, wanted: tuple[str, ...], more: dict[str, Any]) -> dict[str, Any]:
    """Return the named functions and classes of a file, compiled alone."""
    import torch

    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in wanted
    ]
    future = ast.parse("from __future__ import annotations").body
    module = _Unpinned().visit(ast.Module(body=[*future, *nodes], type_ignores=[]))
    names: dict[str, Any] = {
        "torch": torch,
        "np": np,
        "math": math,
        "itertools": itertools,
        "dataclass": dataclass,
        "cdiv": lambda number, by: -(number // -by),
        "round_down": lambda number, by: number // by * by,
        "MLACommonPrefillMetadata": _PrefillMetadata,
        **more,
    }
    exec(compile(ast.fix_missing_locations(module), str(path), "exec"), names)
    return names
