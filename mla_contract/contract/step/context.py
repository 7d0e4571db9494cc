"""The subject of all clauses: one metadata object with whatever else is known of its batch.

What a batch or a record does not say is None, and such attributes have the type Any: a clause names what it reads among
its needs, and a need is the only place that asks whether it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mla_contract.contract.schema.declaration import BackendDeclaration, Routing
from mla_contract.contract.schema.layer_records import layer_kind
from mla_contract.contract.step.facts import NO_FACTS, Facts
from mla_contract.contract.step.host import host, host_copy, host_ints
from mla_contract.contract.step.trace import NO_TRACE, BuildTrace
from mla_contract.contract.step.views import context_view

T = TypeVar("T")
Ints = NDArray[np.int64]


class lazy(Generic[T]):
    """A value computed on first use and kept on the instance; the look-up finds it there from then on."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute = compute
        self.name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        value = self.compute(instance)
        # Not by way of __dict__: asking for it turns the attributes into a dictionary, which slows all later reads.
        setattr(instance, self.name, value)
        return value


def largest(values: Any) -> int:
    """Return the largest element, 0 of none; several times faster than ``max`` on short arrays."""
    return int(values.item(values.argmax())) if len(values) else 0


def smallest(values: Any) -> int:
    """Return the smallest element, 0 of none."""
    return int(values.item(values.argmin())) if len(values) else 0


class _Members:
    """Attributes that are read of an object together; one that cannot be read is None: it is not known."""

    def __init__(self, *names: str) -> None:
        self.names, self.of_all = names, attrgetter(*names)

    def __call__(self, obj: object) -> Sequence[Any]:
        try:
            return self.of_all(obj)
        except Exception:  # noqa: BLE001 - the records are foreign; the structure's check reports a member that raises
            return [read(obj, name) for name in self.names]


def read(obj: object, name: str, absent: Any = None) -> Any:
    """Return an attribute, or ``absent`` where there is none or reading it raises."""
    try:
        return getattr(obj, name, absent)
    except Exception:  # noqa: BLE001 - as above
        return absent


def _int(value: Any) -> Any:
    """Return an int, or None for anything else."""
    return value if type(value) is int else None


def _copy(array: Any) -> Any:
    """Return the elements of a host array, or None."""
    try:
        return host_copy(array)
    except Exception:  # noqa: BLE001 - as above
        return None


_SIZES = _Members("num_reqs", "num_actual_tokens")
_BATCH = _Members(*_SIZES.names, "query_start_loc_cpu", "seq_lens_cpu_upper_bound", "is_prefilling")
_COUNTS = _Members("num_decodes", "num_prefills", "num_decode_tokens", "decode", "prefill")
_ABSENT = object()


@lru_cache(maxsize=64)
def _ramp(shape: tuple[int, ...], kind: np.dtype[Any]) -> bytes:
    """Return the bytes of 0, 1, 2, ... in a shape and an element type."""
    return np.arange(shape[0], dtype=kind).tobytes()


@lru_cache(maxsize=64)
def _ones(length: int) -> Any:
    """Return the query lengths of ``length`` plain decodes; shared, so that nobody may write them."""
    ones = np.ones(length, np.int32)
    ones.setflags(write=False)
    return ones


@dataclass(init=False, eq=False)
class StepContext:
    """What the clauses look at; what several of them share is computed once.

    Attributes:
        metadata: The object that a builder returned: MLA, sparse, aiter or indexer.
        batch: The common batch that the builder was given.
        declaration: What the backend says of itself.
        facts: Numbers of the configuration.
        known: The same, with the type Any, for clauses whose needs say that they are known.
        trace: Records of what happened around the build: calls, reservations, slices, reuse.
        path: How reports name the metadata; its class where it is empty.
        num_reqs: Requests, by the batch or else by the metadata.
        num_tokens: Tokens, by the batch or else by the metadata.
        num_decodes: Decode requests of the metadata.
        num_prefills: Prefill requests of the metadata.
        num_decode_tokens: Decode tokens of the metadata.
        is_indexer: Whether the metadata is an indexer's record.
        is_window: Whether the metadata is that of a sliding-window cache, which a layer of its own reads.
        is_mla: Whether the metadata is an MLA record.
        is_sparse: Whether the metadata is a sparse backend's record.
        all_decodes: Whether the backend declares that all its tokens are decodes.
        decode: The decode part of the metadata.
        prefill: The prefill part of the metadata.
        chunked_context: The chunked context of the prefill part.
        start_loc: Host copy of the query offsets.
        upper_lens: Host upper bound of the sequence lengths.
        is_prefilling: Host copy of the prefilling flags.
        query_lens: Query length of each request, from the host copy.
        context_lens: Host upper bound of the cached tokens of each request.
        max_query_len: Longest query by the host copy; 0 when there is none.
        min_query_len: Shortest query by the host copy; 0 when there is none.
        max_upper_len: Longest sequence by the upper bound; 0 when there is none.
        min_context_len: Fewest cached tokens by the bounds; 0 when there is no request.
    """

    metadata: Any = None
    batch: Any = None
    declaration: BackendDeclaration | None = None
    facts: Facts = NO_FACTS
    trace: BuildTrace = NO_TRACE
    path: str = ""

    def __init__(
        self,
        *,
        metadata: Any = None,
        batch: Any = None,
        declaration: BackendDeclaration | None = None,
        facts: Facts = NO_FACTS,
        trace: BuildTrace = NO_TRACE,
        path: str = "",
    ) -> None:
        """Keep what is given, and read at once what most clauses look at."""
        self.metadata, self.batch, self.declaration = metadata, batch, declaration
        self.facts, self.trace, self.path = facts, trace, path
        self.known: Any = facts
        self.all_decodes = declaration is not None and declaration.routing is Routing.ALL_DECODES
        self.start_loc: Any = None
        self.upper_lens: Any = None
        self.is_prefilling: Any = None
        reqs = tokens = None
        if batch is not None:
            reqs, tokens, start_loc, upper_lens, flags = _BATCH(batch)
            self.start_loc, self.upper_lens = _copy(start_loc), _copy(upper_lens)
            self.is_prefilling = None if flags is None else _copy(flags)
        if type(reqs) is not int or type(tokens) is not int:
            own_reqs, own_tokens = _SIZES(metadata)
            reqs = reqs if type(reqs) is int else _int(own_reqs)
            tokens = tokens if type(tokens) is int else _int(own_tokens)
        self.num_reqs: Any = reqs
        self.num_tokens: Any = tokens
        decodes, prefills, decode_tokens, self.decode, self.prefill = _COUNTS(metadata)
        self.num_decodes: Any = decodes if type(decodes) is int else None
        self.num_prefills: Any = prefills if type(prefills) is int else None
        self.num_decode_tokens: Any = decode_tokens if type(decode_tokens) is int else None
        counts_prefill_tokens = read(metadata, "num_prefill_tokens", _ABSENT) is not _ABSENT
        self.is_window = counts_prefill_tokens and read(metadata, "decode_swa_lens", _ABSENT) is not _ABSENT
        self.is_indexer = counts_prefill_tokens and not self.is_window
        self.is_mla = self.num_decodes is not None and not counts_prefill_tokens
        self.is_sparse = self.is_mla and read(metadata, "topk_tokens", _ABSENT) is not _ABSENT
        self.chunked_context = None if self.prefill is None else read(self.prefill, "chunked_context")
        self.query_lens: Any = None
        self.context_lens: Any = None
        self.max_query_len = self.min_query_len = self.max_upper_len = self.min_context_len = 0
        try:
            self._measure()
        except Exception:  # noqa: BLE001 - arrays of another rank or length: their structure is reported, not measured
            self.query_lens = self.context_lens = None

    def _measure(self) -> None:
        """Take lengths and their extremes from the host copies."""
        start_loc, upper = self.start_loc, self.upper_lens
        if upper is not None:
            self.max_upper_len = largest(upper)
        if start_loc is None:
            return
        # Batches of plain decodes are by far the most: their offsets are known by one comparison of bytes.
        if start_loc.tobytes() == _ramp(start_loc.shape, start_loc.dtype):
            self.query_lens = _ones(len(start_loc) - 1)
            self.max_query_len = self.min_query_len = min(len(self.query_lens), 1)
            if upper is not None:
                self.context_lens = upper - self.query_lens
                self.min_context_len = smallest(upper) - self.min_query_len
            return
        self.query_lens = start_loc[1:] - start_loc[:-1]
        self.max_query_len, self.min_query_len = largest(self.query_lens), smallest(self.query_lens)
        if upper is not None:
            self.context_lens = upper - self.query_lens
            self.min_context_len = smallest(self.context_lens)

    @lazy
    def name(self) -> str:
        """How reports name the metadata."""
        return self.path or type(self.metadata).__name__

    @lazy
    def layer_kind(self) -> str | None:
        """Kind of a record that a layer of its own reads; None for all others."""
        if self.is_mla or self.is_indexer or self.metadata is None:
            return None
        return layer_kind(lambda name: read(self.metadata, name, _ABSENT) is not _ABSENT)

    @lazy
    def batch_name(self) -> str:
        """How reports name the batch."""
        return type(self.batch).__name__

    @lazy
    def max_decode_query_len(self) -> int:
        """Longest query among the leading decodes; 0 when there is none."""
        if self.num_decodes == len(self.query_lens):
            return self.max_query_len
        return largest(self.query_lens[: self.num_decodes])

    @lazy
    def flags(self) -> NDArray[Any]:
        """Which requests compute a prompt, by the flags; requests behind the last flag are padding, and do not."""
        missing = len(self.query_lens) - len(self.is_prefilling)
        return np.concatenate([self.is_prefilling, np.zeros(missing, np.bool_)]) if missing > 0 else self.is_prefilling

    @lazy
    def fresh(self) -> NDArray[Any]:
        """Which live requests compute a prompt: without context, or flagged."""
        fresh: NDArray[Any] = self.context_lens == 0
        if self.is_prefilling is not None:
            fresh |= self.flags
        if self.min_query_len <= 0:
            fresh &= self.upper_lens > 0
        return fresh

    @lazy
    def context(self) -> Any:
        """The chunked context of either shape."""
        return context_view(self.chunked_context)

    @lazy
    def chunk_starts(self) -> tuple[list[Ints], Ints]:
        """First position of each request in each chunk; and what all chunks hold of each prefill, up to their last."""
        chunks = self.context.chunks
        done, starts = np.zeros(max((chunk.last for chunk in chunks), default=0), np.int64), []
        for chunk in chunks:
            own = done[chunk.first : chunk.last]
            starts.append(own.copy())
            own += chunk.sizes
        return starts, done

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
