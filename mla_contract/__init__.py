"""Say once, in types, what attention metadata an MLA backend owes the shared layer; check every backend against it.

Names are loaded on first use, so that importing the package costs nothing and needs no array library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mla_contract.contract.schema import claims
    from mla_contract.contract.schema.aiter import AiterMetadata, AiterSparseMetadata
    from mla_contract.contract.schema.batch import CommonBatch
    from mla_contract.contract.schema.context import ChunkContext, ContextChunk, FieldContext
    from mla_contract.contract.schema.core import CoreMetadata, MLAMetadata
    from mla_contract.contract.schema.counts import CountsMetadata
    from mla_contract.contract.schema.declaration import (
        BackendDeclaration,
        LseBase,
        MultipleOf,
        MultiTokenDecode,
        Routing,
    )
    from mla_contract.contract.schema.decode import DecodeMetadata
    from mla_contract.contract.schema.indexer import (
        IndexerChunk,
        IndexerDecodeMetadata,
        IndexerMetadata,
        IndexerPrefillMetadata,
    )
    from mla_contract.contract.schema.narrow import narrow
    from mla_contract.contract.schema.prefill import PrefillMetadata
    from mla_contract.contract.schema.sparse import SparseMetadata, SparseMLAMetadata
    from mla_contract.contract.schema.tiers import TIERS, Member, members, missing_members
    from mla_contract.contract.schema.workspace import WorkspaceManager, WorkspacePlan, WorkspaceRequest
    from mla_contract.contract.seam import write_seam
    from mla_contract.contract.violation import Violation
    from mla_contract.errors import ContractError, InvalidContract, NoProvider

__version__ = "0.1.0"

_HOMES = {
    "contract.schema.aiter": ("AiterMetadata", "AiterSparseMetadata"),
    "contract.schema.batch": ("CommonBatch",),
    "contract.schema.context": ("ChunkContext", "ContextChunk", "FieldContext"),
    "contract.schema.core": ("CoreMetadata", "MLAMetadata"),
    "contract.schema.counts": ("CountsMetadata",),
    "contract.schema.declaration": ("BackendDeclaration", "LseBase", "MultiTokenDecode", "MultipleOf", "Routing"),
    "contract.schema.decode": ("DecodeMetadata",),
    "contract.schema.indexer": ("IndexerChunk", "IndexerDecodeMetadata", "IndexerMetadata", "IndexerPrefillMetadata"),
    "contract.schema.narrow": ("narrow",),
    "contract.schema.prefill": ("PrefillMetadata",),
    "contract.seam": ("write_seam",),
    "contract.schema.sparse": ("SparseMLAMetadata", "SparseMetadata"),
    "contract.schema.tiers": ("Member", "TIERS", "members", "missing_members"),
    "contract.violation": ("Violation",),
    "contract.schema.workspace": ("WorkspaceManager", "WorkspacePlan", "WorkspaceRequest"),
    "errors": ("ContractError", "InvalidContract", "NoProvider"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "TIERS",
    "AiterMetadata",
    "AiterSparseMetadata",
    "BackendDeclaration",
    "ChunkContext",
    "CommonBatch",
    "ContextChunk",
    "ContractError",
    "CoreMetadata",
    "CountsMetadata",
    "DecodeMetadata",
    "FieldContext",
    "IndexerChunk",
    "IndexerDecodeMetadata",
    "IndexerMetadata",
    "IndexerPrefillMetadata",
    "InvalidContract",
    "LseBase",
    "MLAMetadata",
    "Member",
    "MultiTokenDecode",
    "MultipleOf",
    "NoProvider",
    "PrefillMetadata",
    "Routing",
    "SparseMLAMetadata",
    "SparseMetadata",
    "Violation",
    "WorkspaceManager",
    "WorkspacePlan",
    "WorkspaceRequest",
    "__version__",
    "claims",
    "members",
    "missing_members",
    "narrow",
    "write_seam",
]


def __getattr__(name: str) -> object:
    """Load a public name from its module."""
    if name == "claims":
        return import_module("mla_contract.contract.schema.claims")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
