"""The CUDA sparse backend as a target of the conformance suite."""

from __future__ import annotations

from mla_contract.backends.cuda_sparse.backend import declaration
from mla_contract.backends.cuda_sparse.builder import CudaSparseBuilder
from mla_contract.backends.sparse.target import TESTED, Claims, SparseTarget


def cuda_sparse() -> SparseTarget:
    """Return a fresh builder of the CUDA sparse attention's record."""
    return SparseTarget(
        declaration=declaration(TESTED),
        facts=TESTED.facts,
        expectations=Claims(persistent=("req_id_per_token",)),
        build=CudaSparseBuilder(TESTED).build,
    )
