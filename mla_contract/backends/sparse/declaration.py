"""What sparse backends say of themselves: all but name and block sizes is alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mla_contract.contract.schema.declaration import BackendDeclaration, LseBase, MultipleOf, MultiTokenDecode, Routing

if TYPE_CHECKING:
    from mla_contract.backends.registry import RegisteredBackend
    from mla_contract.backends.sparse.config import SparseConfig


def sparse_declaration(
    config: SparseConfig, backend: RegisteredBackend, block_sizes: tuple[int | MultipleOf, ...]
) -> BackendDeclaration:
    """Return what a backend that takes these block sizes says of itself under a configuration."""
    return BackendDeclaration(
        name=backend.name,
        routing=Routing.SHARED_SPLIT,
        dense_prefill=config.dense_prefill,
        decode_lse=True,
        lse_base=LseBase.E,
        multi_token_decode=MultiTokenDecode.VARLEN,
        kernel_block_sizes=block_sizes,
    )
