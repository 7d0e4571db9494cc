"""The subject of all clauses: one metadata object with whatever else is known of its batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mla_contract.contract.schema.declaration import BackendDeclaration, Routing
from mla_contract.contract.step.facts import NO_FACTS, Facts
from mla_contract.contract.step.host import host, host_copy, host_ints
from mla_contract.contract.step.trace import NO_TRACE, BuildTrace
from mla_contract.contract.step.views import ContextView, context_view

T = TypeVar("T")
Ints = NDArray[np.int64]


class lazy(Generic[T]):
    """A value computed on first use and kept on the instance; works on frozen classes."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        value = instance.__dict__[self.name] = self.compute(instance)
        return value


def largest(values: Any) -> int:
    """Return the largest element, 0 of none; several times faster than ``max`` on short arrays."""
    return int(values[values.argmax()]) if len(values) else 0


def smallest(values: Any) -> int:
    """Return the smallest element, 0 of none."""
    return int(values[values.argmin()]) if len(values) else 0


def read_int(obj: object, name: str) -> int | None:
    """Return an integer attribute, or None when it is missing or no integer."""
    value = getattr(obj, name, None)
    return value if type(value) is int else None


@dataclass(frozen=True, kw_only=True, eq=False)
class StepContext:
    """What the clauses look at. Whatever is None is not known, and the clauses that need it do not apply.

    Attributes:
        metadata: The object that a builder returned: MLA, sparse, aiter or indexer.
        batch: The common batch that the builder was given.
        declaration: What the backend says of itself.
        facts: Numbers of the configuration.
        trace: Records of what happened around the build: calls, reservations, slices, reuse.
        path: How reports name the metadata.
    """

    metadata: Any = None
    batch: Any = None
    declaration: BackendDeclaration | None = None
    facts: Facts = NO_FACTS
    trace: BuildTrace = NO_TRACE
    path: str = ""

    @lazy
    def name(self) -> str:
        """How reports name the metadata."""
        return self.path or type(self.metadata).__name__

    @lazy
    def batch_name(self) -> str:
        """How reports name the batch."""
        return type(self.batch).__name__

    @lazy
    def num_reqs(self) -> int | None:
        """Requests, by the batch or else by the metadata."""
        found = read_int(self.batch, "num_reqs")
        return read_int(self.metadata, "num_reqs") if found is None else found

    @lazy
    def num_tokens(self) -> int | None:
        """Tokens, by the batch or else by the metadata."""
        found = read_int(self.batch, "num_actual_tokens")
        return read_int(self.metadata, "num_actual_tokens") if found is None else found

    @lazy
    def num_decodes(self) -> int | None:
        """Decode requests of the metadata."""
        return read_int(self.metadata, "num_decodes")

    @lazy
    def num_prefills(self) -> int | None:
        """Prefill requests of the metadata."""
        return read_int(self.metadata, "num_prefills")

    @lazy
    def num_decode_tokens(self) -> int | None:
        """Decode tokens of the metadata."""
        return read_int(self.metadata, "num_decode_tokens")

    @lazy
    def is_indexer(self) -> bool:
        """Whether the metadata is an indexer's record."""
        return self.metadata is not None and hasattr(self.metadata, "num_prefill_tokens")

    @lazy
    def is_mla(self) -> bool:
        """Whether the metadata is an MLA record."""
        return self.metadata is not None and not self.is_indexer and self.num_decodes is not None

    @lazy
    def is_sparse(self) -> bool:
        """Whether the metadata is a sparse backend's record."""
        return self.is_mla and hasattr(self.metadata, "topk_tokens")

    @lazy
    def all_decodes(self) -> bool:
        """Whether the backend declares that all its tokens are decodes."""
        return self.declaration is not None and self.declaration.routing is Routing.ALL_DECODES

    @lazy
    def decode(self) -> Any:
        """The decode part of the metadata."""
        return getattr(self.metadata, "decode", None)

    @lazy
    def prefill(self) -> Any:
        """The prefill part of the metadata."""
        return getattr(self.metadata, "prefill", None)

    @lazy
    def start_loc(self) -> Ints | None:
        """Host copy of the query offsets."""
        return host_copy(getattr(self.batch, "query_start_loc_cpu", None))

    @lazy
    def query_lens(self) -> Ints | None:
        """Query length of each request, from the host copy."""
        return None if self.start_loc is None else self.start_loc[1:] - self.start_loc[:-1]

    @lazy
    def max_query_len(self) -> int:
        """Longest query by the host copy; 0 when there is none."""
        return 0 if self.query_lens is None else largest(self.query_lens)

    @lazy
    def min_query_len(self) -> int:
        """Shortest query by the host copy; 0 when there is none."""
        return 0 if self.query_lens is None else smallest(self.query_lens)

    @lazy
    def max_decode_query_len(self) -> int:
        """Longest query among the leading decodes; 0 when there is none."""
        own = None if self.query_lens is None or self.num_decodes is None else self.query_lens[: self.num_decodes]
        return 0 if own is None else largest(own)

    @lazy
    def upper_lens(self) -> Ints | None:
        """Host upper bound of the sequence lengths."""
        return host_copy(getattr(self.batch, "seq_lens_cpu_upper_bound", None))

    @lazy
    def max_upper_len(self) -> int:
        """Longest sequence by the upper bound; 0 when there is none."""
        return 0 if self.upper_lens is None else largest(self.upper_lens)

    @lazy
    def context_lens(self) -> Ints | None:
        """Host upper bound of the cached tokens of each request."""
        if self.upper_lens is None or self.query_lens is None:
            return None
        return self.upper_lens - self.query_lens

    @lazy
    def min_context_len(self) -> int:
        """Fewest cached tokens by the bounds; 0 when there is no request."""
        return 0 if self.context_lens is None else smallest(self.context_lens)

    @lazy
    def is_prefilling(self) -> NDArray[Any] | None:
        """Host copy of the prefilling flags."""
        return host_copy(getattr(self.batch, "is_prefilling", None))

    @lazy
    def fresh(self) -> NDArray[Any] | None:
        """Which live requests compute a prompt: without context, or flagged; None when it is not known."""
        if self.context_lens is None or self.upper_lens is None:
            return None
        fresh: NDArray[Any] = self.context_lens == 0
        if self.is_prefilling is not None:
            fresh |= self.is_prefilling
        if self.min_query_len <= 0:
            fresh &= self.upper_lens > 0
        return fresh

    @lazy
    def context(self) -> ContextView | None:
        """The chunked context of either shape."""
        return context_view(getattr(self.prefill, "chunked_context", None))

    @lazy
    def seq_lens(self) -> Ints:
        """Elements of the batch's sequence lengths. Sync: reads device memory."""
        return host_ints(self.batch.seq_lens)

    @lazy
    def device_start_loc(self) -> Ints:
        """Elements of the batch's query offsets. Sync: reads device memory."""
        return host_ints(self.batch.query_start_loc)

    @lazy
    def device_query_lens(self) -> Ints:
        """Query lengths on the device. Sync: reads device memory."""
        return np.diff(self.device_start_loc)

    @lazy
    def owners(self) -> Ints:
        """Request of each token, by the device offsets. Sync: reads device memory."""
        return np.repeat(np.arange(len(self.seq_lens)), self.device_query_lens)

    @lazy
    def places(self) -> Ints:
        """Request-local position of each token, by the device lengths. Sync: reads device memory."""
        ends = self.device_start_loc[1:]
        return np.arange(len(self.owners)) + np.repeat(self.seq_lens - ends, self.device_query_lens)

    @lazy
    def table(self) -> Ints:
        """Elements of the batch's block table. Sync: reads device memory."""
        return host(self.batch.block_table_tensor)

    @lazy
    def slots(self) -> Ints:
        """Elements of the batch's slot mapping. Sync: reads device memory."""
        return host_ints(self.batch.slot_mapping)
