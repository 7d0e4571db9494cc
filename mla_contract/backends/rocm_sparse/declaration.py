"""What the ROCm sparse backend says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mla_contract.backends.rocm_sparse import BACKEND
from mla_contract.backends.sparse.declaration import sparse_declaration
from mla_contract.contract.schema.declaration import BackendDeclaration, MultipleOf

if TYPE_CHECKING:
    from mla_contract.backends.sparse.config import SparseConfig

BLOCK_SIZES = (1, MultipleOf(16))
"""Block sizes that the kernels take, in tokens."""


def declaration(config: SparseConfig) -> BackendDeclaration:
    """Return what the backend says of itself under a configuration."""
    return sparse_declaration(config, BACKEND, BLOCK_SIZES)
