"""The backend as a target of the conformance suite; entry points of the group ``mla_contract.backends`` name these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mla_contract.adapters.release import NEWEST
from mla_contract.backends.rocm_sparse.backend import declaration
from mla_contract.backends.rocm_sparse.builder import RocmSparseBuilder
from mla_contract.backends.rocm_sparse.config import SparseConfig
from mla_contract.backends.rocm_sparse.indexer_metadata import SparseIndexerMetadata
from mla_contract.contract.declaration import BackendDeclaration

if TYPE_CHECKING:
    from mla_contract.contract.batch import CommonBatch
    from mla_contract.contract.clauses.facts import Facts

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

ROW_FIELDS = ("req_id_per_token", "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
"""Fields of the attention's record that a captured graph reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a builder claims beyond its declaration, as the suite reads it."""

    persistent: tuple[str, ...] = ()
    protocol: type | None = None
    release: str = NEWEST


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseTarget:
    """A builder under test, with all that is constant about it."""

    declaration: BackendDeclaration
    facts: Facts
    expectations: Claims
    build: Callable[[Any], Any]


def rocm_sparse() -> SparseTarget:
    """Return a fresh builder of the ROCm sparse attention's record."""
    return SparseTarget(
        declaration=declaration(TESTED),
        facts=TESTED.facts,
        expectations=Claims(persistent=ROW_FIELDS),
        build=RocmSparseBuilder(TESTED).build,
    )


def sparse_indexer() -> SparseTarget:
    """Return a fresh builder of the indexer's record."""
    lowering = RocmSparseBuilder(TESTED).lowering

    def build(batch: CommonBatch) -> SparseIndexerMetadata:
        return lowering.indexer(lowering.step(batch))

    return SparseTarget(declaration=declaration(TESTED), facts=TESTED.facts, expectations=Claims(), build=build)
