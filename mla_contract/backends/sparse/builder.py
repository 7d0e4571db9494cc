"""What the builders of sparse backends do alike: one planned step becomes the records of attention and indexer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from mla_contract.backends.sparse.lowering import Lowering
from mla_contract.backends.sparse.metadata import SparseRecord
from mla_contract.backends.sparse.step import LoweredStep

if TYPE_CHECKING:
    import torch

    from mla_contract.backends.sparse.config import SparseConfig
    from mla_contract.backends.sparse.indexer_metadata import SparseIndexerMetadata
    from mla_contract.contract.schema.batch import CommonBatch
    from mla_contract.contract.schema.provider import KernelProvider

M_co = TypeVar("M_co", bound=SparseRecord, covariant=True)


class SparseBuilder(ABC, Generic[M_co]):
    """Builds the record of each step in buffers whose addresses never change.

    Attributes:
        config: The configuration.
        lowering: Plans and copies; the indexer's record is made of the same step.
    """

    def __init__(
        self,
        config: SparseConfig,
        device: torch.device | str = "cpu",
        *,
        providers: Sequence[KernelProvider] | None = None,
    ) -> None:
        """Allocate the shared buffers.

        Args:
            config: The configuration.
            device: Where the kernels run.
            providers: Kernel providers to try where kernels plan ahead; the registry's order by default.
        """
        self.config, self.providers = config, providers
        self.lowering = Lowering(config, device)

    def build(self, batch: CommonBatch) -> M_co:
        """Return the attention's record of a batch.

        Raises:
            InvalidBatch: The batch cannot be planned, or exceeds the buffers.

        Sync: reads no device memory.
        """
        return self.build_step(self.lowering.step(batch, indexer=False))

    def build_pair(self, batch: CommonBatch) -> tuple[M_co, SparseIndexerMetadata]:
        """Return the records of attention and indexer, made of one plan. Sync: reads no device memory."""
        step = self.lowering.step(batch)
        return self.build_step(step), self.lowering.indexer(step)

    @abstractmethod
    def build_step(self, step: LoweredStep) -> M_co:
        """Return the attention's record of a planned step. Sync: reads no device memory."""
