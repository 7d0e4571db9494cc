"""Targets of the conformance suite for sparse backends; registered backends name such factories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mla_contract.adapters.release import NEWEST
from mla_contract.backends.sparse import INDEXER
from mla_contract.backends.sparse.config import SparseConfig
from mla_contract.backends.sparse.declaration import sparse_declaration
from mla_contract.backends.sparse.indexer_metadata import SparseIndexerMetadata
from mla_contract.backends.sparse.lowering import Lowering
from mla_contract.contract.schema.declaration import BackendDeclaration, MultipleOf

if TYPE_CHECKING:
    from mla_contract.contract.schema.batch import CommonBatch
    from mla_contract.contract.step.facts import Facts

TESTED = SparseConfig(
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    max_model_len=16384,
    max_capture_size=256,
    block_size=64,
    topk_tokens=128,
    next_n=4,
    indexer_rows=65536,
)
"""What the suite's batches fit into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseClaims:
    """What a builder claims beyond its declaration, as the suite reads it."""

    persistent: tuple[str, ...] = ()
    protocol: type | None = None
    release: str = NEWEST


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseTarget:
    """A builder under test, with all that is constant about it."""

    declaration: BackendDeclaration
    facts: Facts
    expectations: SparseClaims
    build: Callable[[Any], Any]


def fresh_indexer() -> SparseTarget:
    """Return a fresh builder of the indexer's record."""
    lowering = Lowering(TESTED, "cpu")

    def build(batch: CommonBatch) -> SparseIndexerMetadata:
        return lowering.indexer(lowering.step(batch))

    return SparseTarget(
        declaration=sparse_declaration(TESTED, INDEXER, (1, MultipleOf(16))),
        facts=TESTED.facts,
        expectations=SparseClaims(),
        build=build,
    )
