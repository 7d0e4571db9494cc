"""The CUDA sparse backend as a target of the conformance suite."""

from __future__ import annotations

from mla_contract.backends.cuda_sparse.builder import CudaSparseBuilder
from mla_contract.backends.cuda_sparse.declaration import declaration
from mla_contract.backends.sparse.target import TESTED, SparseClaims, SparseTarget


def fresh_target() -> SparseTarget:
    """Return a fresh builder of the CUDA sparse attention's record."""
    return SparseTarget(
        declaration=declaration(TESTED),
        facts=TESTED.facts,
        expectations=SparseClaims(persistent=("req_id_per_token",)),
        build=CudaSparseBuilder(TESTED).build,
    )
