"""A sparse backend as a whole: its declaration, and the parts that one engine process makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from mla_contract.backends.sparse.indexer import SparseIndexer
from mla_contract.contract.schema.declaration import BackendDeclaration, LseBase, MultipleOf, MultiTokenDecode, Routing

if TYPE_CHECKING:
    from mla_contract.backends.sparse.attention import SparseAttentionOp
    from mla_contract.backends.sparse.builder import SparseBuilder
    from mla_contract.backends.sparse.config import SparseConfig
    from mla_contract.backends.sparse.metadata import SparseMetadata
    from mla_contract.contract.schema.provider import KernelProvider

Builder = TypeVar("Builder", bound="SparseBuilder[SparseMetadata]", covariant=True)
Attention = TypeVar("Attention", bound="SparseAttentionOp", covariant=True)


def sparse_declaration(
    config: SparseConfig, name: str, kernel_block_sizes: Sequence[int | MultipleOf]
) -> BackendDeclaration:
    """Return what a backend of this name and these block sizes says of itself under a configuration."""
    return BackendDeclaration(
        name=name,
        routing=Routing.SHARED_SPLIT,
        dense_prefill=config.dense_prefill,
        decode_lse=True,
        lse_base=LseBase.E,
        multi_token_decode=MultiTokenDecode.VARLEN,
        kernel_block_sizes=tuple(kernel_block_sizes),
    )


class SparseBackend(Generic[Builder, Attention]):
    """Builder, attention and indexer over one configuration and one workspace.

    Attributes:
        builder: Builds the records of each step.
        attention: The attention op.
        indexer: The indexer op.
        declaration: What the backend says of itself.
    """

    def __init__(
        self,
        declaration: BackendDeclaration,
        builder: Builder,
        attention: Attention,
        providers: Sequence[KernelProvider] | None = None,
    ) -> None:
        """Keep the parts, and make the indexer over the same configuration and workspace.

        Args:
            declaration: What the backend says of itself.
            builder: The builder.
            attention: The attention op.
            providers: Kernel providers that the indexer tries; the registry's order by default.
        """
        self.config, self.manager = attention.config, attention.manager
        self.declaration, self.builder, self.attention = declaration, builder, attention
        self.indexer = SparseIndexer(self.config, self.manager, providers)

    def profile(self) -> None:
        """Reserve all scratch, as the profiling run does."""
        self.indexer.scratch.reserve(self.manager)
