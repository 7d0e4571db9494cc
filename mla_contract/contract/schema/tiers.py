"""The tiers by name, and what each demands, read back from the Protocols.

pydantic models, audit requirements, seams and docs are derived from here; nothing else lists field names.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MappingProxyType
from typing import Any

from mla_contract.contract.schema.aiter import AiterMetadata, AiterSparseMetadata, AiterWork
from mla_contract.contract.schema.batch import CommonBatch
from mla_contract.contract.schema.context import ChunkContext, ContextChunk, FieldContext, FieldContextLens
from mla_contract.contract.schema.core import CoreMetadata, MLAMetadata
from mla_contract.contract.schema.counts import CountsMetadata
from mla_contract.contract.schema.decode import DecodeMetadata
from mla_contract.contract.schema.indexer import (
    IndexerChunk,
    IndexerDecodeMetadata,
    IndexerMetadata,
    IndexerPrefillMetadata,
)
from mla_contract.contract.schema.layer_records import (
    CompressedMetadata,
    CompressorMetadata,
    RingCompressorMetadata,
    StateRowsMetadata,
    WindowMetadata,
)
from mla_contract.contract.schema.prefill import DensePrefillMetadata, PrefillMetadata
from mla_contract.contract.schema.sparse import SparseMetadata, SparseMLAMetadata
from mla_contract.contract.schema.workspace import WorkspaceManager
from mla_contract.errors import InvalidContract

TIERS: Mapping[str, type] = MappingProxyType(
    {
        "batch": CommonBatch,
        "counts": CountsMetadata,
        "core": CoreMetadata,
        "mla": MLAMetadata,
        "decode": DecodeMetadata,
        "prefill": PrefillMetadata,
        "prefill-dense": DensePrefillMetadata,
        "context-fields": FieldContext,
        "context-fields-lens": FieldContextLens,
        "context-chunks": ChunkContext,
        "context-chunk": ContextChunk,
        "sparse": SparseMetadata,
        "sparse-mla": SparseMLAMetadata,
        "aiter": AiterMetadata,
        "aiter-work": AiterWork,
        "aiter-sparse": AiterSparseMetadata,
        "indexer": IndexerMetadata,
        "indexer-prefill": IndexerPrefillMetadata,
        "indexer-chunk": IndexerChunk,
        "indexer-decode": IndexerDecodeMetadata,
        "window": WindowMetadata,
        "compressed": CompressedMetadata,
        "state-rows": StateRowsMetadata,
        "compressor": CompressorMetadata,
        "compressor-ring": RingCompressorMetadata,
        "workspace": WorkspaceManager,
    }
)
"""Every tier's Protocol, by the name that the command line uses."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a Protocol.

    Attributes:
        name: The member's name.
        annotation: Its type as written in the source; for a method, its signature.
        doc: Its docstring: meaning, unit, padding, source.
        owner: Name of the Protocol that states it.
        is_method: Whether it is called rather than read.
    """

    name: str
    annotation: str
    doc: str
    owner: str
    is_method: bool = False


def tier_protocol(name: str) -> type:
    """Return the Protocol of a tier.

    Raises:
        InvalidContract: If no tier has this name; the message lists the names.
    """
    if name not in TIERS:
        raise InvalidContract(f"unknown tier {name!r}; tiers are {', '.join(TIERS)}")
    return TIERS[name]


def members(protocol: type) -> dict[str, Member]:
    """Return what a Protocol demands, inherited members first, without evaluating any annotation."""
    found: dict[str, Member] = {}
    for base in _protocols(protocol):
        for name, value in vars(base).items():
            if name.startswith("_"):
                continue
            if isinstance(value, property) and value.fget is not None:
                annotation = str(value.fget.__annotations__["return"])
                found[name] = Member(name, annotation, inspect.getdoc(value) or "", base.__name__)
            elif isinstance(value, FunctionType):
                text = str(inspect.signature(value)).replace("'", "")
                found[name] = Member(name, text, inspect.getdoc(value) or "", base.__name__, is_method=True)
    return found


def _protocols(protocol: type) -> Iterator[type]:
    """Yield the Protocols that ``protocol`` is made of, in the order of its statement, itself last."""
    for base in protocol.__bases__:
        if getattr(base, "_is_protocol", False) and base.__module__ != "typing":
            yield from _protocols(base)
    yield protocol


def missing_members(cls: type, tier: str | type) -> list[str]:
    """Return every member of ``tier`` that ``cls`` does not declare, in the tier's order.

    A class declares a member by a class attribute, an annotation (so also a dataclass or pydantic field), a property, a
    method or a slot, its own or inherited. Attributes that only ``__init__`` assigns are not declared.

    Args:
        cls: An imported metadata class.
        tier: A tier's name, or a Protocol.
    """
    protocol = tier_protocol(tier) if isinstance(tier, str) else tier
    declared: set[str] = set()
    for base in cls.__mro__:
        space: Mapping[str, Any] = vars(base)
        declared.update(space)
        declared.update(inspect.get_annotations(base))
        slots = space.get("__slots__", ())
        declared.update((slots,) if isinstance(slots, str) else slots)
    return [name for name in members(protocol) if name not in declared]
