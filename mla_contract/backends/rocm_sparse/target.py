"""The ROCm sparse backend as a target of the conformance suite."""

from __future__ import annotations

from mla_contract.backends.rocm_sparse.builder import RocmSparseBuilder
from mla_contract.backends.rocm_sparse.declaration import declaration
from mla_contract.backends.sparse.target import TESTED, SparseClaims, SparseTarget

ROW_FIELDS = ("req_id_per_token", "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
"""Fields of the attention's record that a captured graph reads."""


def fresh_target() -> SparseTarget:
    """Return a fresh builder of the ROCm sparse attention's record."""
    return SparseTarget(
        declaration=declaration(TESTED),
        facts=TESTED.facts,
        expectations=SparseClaims(persistent=ROW_FIELDS),
        build=RocmSparseBuilder(TESTED).build,
    )
