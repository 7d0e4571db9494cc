"""Persistent work of the attention kernel: sized once, planned into the same memory whenever any input changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mla_contract.adapters.arrays import Int32Array
from mla_contract.backends.kernels import registry
from mla_contract.contract.schema.persistent_work import WorkBuffers, WorkConfig, WorkSizes
from mla_contract.contract.schema.provider import FillWork, KernelProvider, SizeWork
from mla_contract.contract.step.trace import Reuse
from mla_contract.errors import InvalidContract

if TYPE_CHECKING:
    from mla_contract.backends.sparse.config import SparseConfig

SIX = tuple(one.name for one in fields(WorkSizes))
"""Names of the six work arrays."""


@dataclass(frozen=True, slots=True)
class WorkKey:
    """Everything that planned work depends on.

    Lengths are kept whole rather than hashed: work of other lengths would give wrong results without a word.

    Attributes:
        ubatch: The micro-batch.
        layer_group: Layers that share the builder.
        token_kv_lens: Prefix sum of the keys of each row, as bytes.
        query_lens: Query tokens of each request, as bytes.
        num_heads: Query heads.
        q_dtype: Element type of the queries.
        kv_dtype: Element type of the cache.
        page_size: Tokens of a page.
        padded_batch: Rows, padding included.
    """

    ubatch: int
    layer_group: str
    token_kv_lens: bytes
    query_lens: bytes
    num_heads: int
    q_dtype: torch.dtype
    kv_dtype: torch.dtype
    page_size: int
    padded_batch: int

    def inputs(self) -> Mapping[str, object]:
        """Return the inputs by name, as clause MLA392 compares them."""
        return {name: getattr(self, name) for name in self.__slots__}


class PersistentWork:
    """One memory for the work of every batch size; a smaller batch's arrays are its leading parts.

    Attributes:
        last_reuse: The record of the last build that planned nothing; None after one that did.
    """

    def __init__(
        self,
        config: SparseConfig,
        device: torch.device,
        *,
        providers: Sequence[KernelProvider] | None = None,
        ubatch: int = 0,
        layer_group: str = "",
    ) -> None:
        """Allocate the work of the largest batch.

        Raises:
            NoProvider: No provider plans work for this configuration.
        """
        self._providers, self._place = providers, (ubatch, layer_group)
        self._host_knows = not config.device_lens_may_differ
        self._config = WorkConfig(
            num_rows=config.token_rows,
            num_heads=config.num_heads,
            q_dtype=config.q_dtype,
            kv_dtype=config.kv_dtype,
            with_lse=config.with_lse,
            max_split_per_batch=config.max_split_per_batch,
        )
        sizes = registry.run(SizeWork(config=self._config), providers)
        self._arrays = {name: _zeros(getattr(sizes, name), device) for name in SIX}
        rows = config.token_rows
        self._qo_indptr = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._kv_indptr = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self._last_page = torch.ones(rows, dtype=torch.int32, device=device)
        # A captured graph keeps the record of its size, so none is ever dropped; there are as many as batch sizes.
        self._cut: dict[int, WorkBuffers] = {}
        self._key: WorkKey | None = None
        self.last_reuse: Reuse | None = None

    def buffers(self, num_rows: int) -> WorkBuffers:
        """Return the arrays of a batch of ``num_rows`` rows; their addresses never change.

        Raises:
            InvalidContract: A smaller batch needs more memory than the largest.
        """
        if num_rows not in self._cut:
            config = replace(self._config, num_rows=num_rows)
            sizes = registry.run(SizeWork(config=config), self._providers)
            self._cut[num_rows] = WorkBuffers(
                config=config,
                qo_indptr=self._qo_indptr[: num_rows + 1],
                kv_indptr=self._kv_indptr[: num_rows + 1],
                kv_last_page_lens=self._last_page[:num_rows],
                **{name: _leading(name, self._arrays[name], getattr(sizes, name)[0]) for name in SIX},
            )
        return self._cut[num_rows]

    def plan(self, kv_indptr: Tensor, kv_indptr_cpu: Int32Array, query_lens: Int32Array) -> WorkBuffers:
        """Return work for these rows, planned now unless every input is known to equal those of the last plan.

        Args:
            kv_indptr: [rows+1] int32 on the device, prefix sum of the keys of each row.
            kv_indptr_cpu: The same on the host, or a bound on it.
            query_lens: [num_reqs] int32 on the host.

        Sync: reads no device memory.
        """
        num_rows = len(kv_indptr_cpu) - 1
        key = self._key_of(np.ascontiguousarray(kv_indptr_cpu).tobytes(), query_lens.tobytes(), num_rows)
        work = self.buffers(num_rows)
        if self._host_knows and key == self._key:
            self.last_reuse = Reuse("persistent work", self._key.inputs(), key.inputs())
            return work
        registry.run(FillWork(buffers=work, kv_indptr=kv_indptr), self._providers)
        self._key, self.last_reuse = key, None
        return work

    def _key_of(self, token_kv_lens: bytes, query_lens: bytes, num_rows: int) -> WorkKey:
        """Return the key of a batch."""
        own = self._config
        return WorkKey(
            *self._place,
            token_kv_lens,
            query_lens,
            num_heads=own.num_heads,
            q_dtype=own.q_dtype,
            kv_dtype=own.kv_dtype,
            page_size=1,
            padded_batch=num_rows,
        )


def _zeros(size: tuple[tuple[int, ...], Any], device: torch.device) -> Tensor:
    """Return one array of the largest batch."""
    return torch.zeros(size[0], dtype=size[1], device=device)


def _leading(name: str, whole: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the leading part of an array, which keeps its address."""
    if shape[0] > whole.shape[0] or shape[1:] != tuple(whole.shape[1:]):
        raise InvalidContract(f"{name}: a smaller batch asks for {shape}, the largest for {tuple(whole.shape)}")
    return whole[: shape[0]]
