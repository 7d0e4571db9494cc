"""What a builder's result is checked as: decided by structure, never by the name of a backend."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from typing import Any

from mla_contract.contract.schema.aiter import AiterSparseMetadata
from mla_contract.contract.schema.core import MLAMetadata
from mla_contract.contract.schema.indexer import IndexerMetadata
from mla_contract.contract.schema.layer_records import (
    CompressedMetadata,
    CompressorMetadata,
    RingCompressorMetadata,
    StateRowsMetadata,
    WindowMetadata,
    layer_kind,
)
from mla_contract.contract.schema.sparse import SparseMLAMetadata


class RecordKind(StrEnum):
    """What a record is for; the words of the profiles."""

    DENSE = "dense"
    SPARSE = "sparse"
    INDEXER = "indexer"
    WINDOW = "window"
    COMPRESSED = "compressed"
    COMPRESSOR = "compressor"


def kind_of(backend: Any, spec: Any, record: Any) -> RecordKind | None:
    """Return what a record is for, or None when the contract does not speak of it.

    Args:
        backend: The attention backend's class, or None when it is not known.
        spec: The cache's spec, or None.
        record: What the builder returned.
    """
    role = getattr(getattr(spec, "cache_role", None), "value", None)
    if backend is not None and role != RecordKind.INDEXER.value and not _serves_the_layer(backend):
        found = layer_kind(lambda name: hasattr(record, name))
        if found is not None:
            return RecordKind(found)
    if _says(backend, "is_mla"):
        if not _serves_the_layer(backend):
            return None
        return RecordKind.SPARSE if _says(backend, "is_sparse") else RecordKind.DENSE
    if not _is_latent(spec):
        return None
    if role == RecordKind.INDEXER.value or (role is None and hasattr(record, "num_prefill_tokens")):
        return RecordKind.INDEXER
    if backend is None:
        return RecordKind.SPARSE if hasattr(record, "topk_tokens") else RecordKind.DENSE
    return None


def protocol_for(kind: RecordKind, record: Any) -> type:
    """Return the Protocol that a record of this kind owes."""
    if kind is RecordKind.INDEXER:
        return IndexerMetadata
    if kind is RecordKind.DENSE:
        return MLAMetadata
    if kind is RecordKind.WINDOW:
        return WindowMetadata
    if kind is RecordKind.COMPRESSED:
        return StateRowsMetadata if hasattr(record, "c128a_decode_topk_lens") else CompressedMetadata
    if kind is RecordKind.COMPRESSOR:
        return RingCompressorMetadata if hasattr(record, "query_start_loc") else CompressorMetadata
    return AiterSparseMetadata if hasattr(record, "paged_kv_indptr") else SparseMLAMetadata


def _says(backend: Any, question: str) -> bool:
    """Return the answer of a backend's class method; False when it has none, or raises."""
    method: Callable[[], object] | None = getattr(backend, question, None)
    try:
        return bool(method()) if callable(method) else False
    except Exception:  # noqa: BLE001 - a backend that cannot answer is not checked, and must not stop the engine
        return False


@lru_cache(maxsize=64)
def _serves_the_layer(backend: Any) -> bool:
    """Return whether the shared layer can get an impl of a backend; asked once, because answering may import it.

    A backend whose ``get_impl_cls`` says that there is none has a layer of its own, which reads its records by itself.

    Source: vLLM 0.32.0, DeepSeek V4's backends.
    """
    try:
        return backend.get_impl_cls() is not None
    except NotImplementedError:
        return False
    except Exception:  # noqa: BLE001 - whatever else it raises says nothing about who reads its records
        return True


@lru_cache(maxsize=64)
def impl_classes(backend: Any) -> frozenset[str]:
    """Return the full names of a backend's impl class and of its bases; none where it does not say."""
    try:
        return frozenset(f"{one.__module__}.{one.__qualname__}" for one in backend.get_impl_cls().__mro__)
    except Exception:  # noqa: BLE001 - a backend that cannot answer is not one whose methods are known
        return frozenset()


def _is_latent(spec: Any) -> bool:
    """Return whether a cache's spec is that of MLA: by its bases, so that a fork's subclass counts."""
    return any(base.__name__ == "MLAAttentionSpec" for base in type(spec).__mro__)
