"""One view of chunked context, whichever of its two shapes a release has, and the way into nested metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from mla_contract.contract.step.host import host_copy

FIELD_SHAPE, CHUNK_SHAPE = "fields", "chunks"
_NO_LENS = np.zeros(0, np.int32)


class ChunkView:
    """One chunk: which prefills it serves, and how many context tokens of each.

    Attributes:
        path: Where it stands in the record.
        first: First prefill-local request.
        last: End of the requests.
        sizes: Context tokens of each request, from the host.
        tokens: Their sum.
        longest: Their largest; 0 of none.
        shortest: Their smallest; 1 of none, because no request is without tokens.
        total: Tokens that the record says the chunk has over all ranks.
        local_total: Rows that the record says this rank gathers.
        max_len: Longest slice that the record states.
        padded_local: Local lengths on each rank, rounded up; None without DCP.
        cu_seq_lens: Array of prefix sums of the lengths, or of the local lengths where the old shape holds those.
        starts: Array of first positions: local ones under DCP.
        token_to_seq: Array of owners.
        record: The chunk's own record; None in the shape of parallel lists.
        padded_cu_seq_lens: Array of prefix sums of ``padded_local``; None where the record has none.
        padded_token_to_seq: Array of owners of the padded local rows; None where the record has none.
    """

    __slots__ = (
        *("path", "first", "last", "sizes", "tokens", "longest", "shortest", "total", "local_total", "max_len"),
        *("padded_local", "cu_seq_lens", "starts", "token_to_seq", "record"),
        *("padded_cu_seq_lens", "padded_token_to_seq"),
    )

    total: Any
    local_total: Any
    max_len: Any
    padded_local: Any
    cu_seq_lens: Any
    starts: Any
    token_to_seq: Any
    padded_cu_seq_lens: Any
    padded_token_to_seq: Any

    def __init__(self, path: str, first: int, sizes: Any, record: Any = None) -> None:
        """Measure the lengths; the other attributes are set by whoever reads the shape."""
        self.path, self.first, self.sizes, self.record = path, first, sizes, record
        self.last = first + len(sizes)
        self.tokens = int(np.add.reduce(sizes))
        self.longest: int = sizes.item(sizes.argmax()) if len(sizes) else 0
        self.shortest: int = sizes.item(sizes.argmin()) if len(sizes) else 1

    @property
    def lens(self) -> tuple[int, ...]:
        """The lengths as ints, for reports."""
        return tuple(self.sizes.tolist())

    def field_path(self, name: str) -> str:
        """Return how reports name a field of the chunk, given by its name since 0.28."""
        if self.record is not None:
            return f"{self.path}.{name}"
        return _NAMES_BEFORE.get(name, name) + self.path.removeprefix("seq_lens")


_NAMES_BEFORE: Mapping[str, str] = MappingProxyType(
    {
        "num_context_tokens": "chunk_total_token",
        "num_local_context_tokens": "seq_tot",
        "max_seq_len": "max_seq_lens",
        "padded_local_seq_lens": "padded_local_chunk_seq_lens",
    }
)
"""Names of the parallel lists up to 0.27, by the names of a chunk's fields."""


@dataclass(frozen=True, slots=True)
class ContextView:
    """Chunked context of either shape.

    Attributes:
        shape: ``fields`` up to 0.27, ``chunks`` since 0.28.
        chunks: The chunks in order.
        context_lens: Host list of cached tokens of each prefill; None where the shape has none.
        workspace: Scratch array.
        flagged_empty: Which chunks say that they hold a request without tokens; None in the new shape.
        empty_slices: Query tokens of prefills without context; None in the old shape.
        local_lens: True local context of each request on each rank; None without DCP.
    """

    shape: str
    chunks: tuple[ChunkView, ...]
    context_lens: Sequence[int] | None
    workspace: Any
    flagged_empty: tuple[bool, ...] | None
    empty_slices: tuple[slice, ...] | None
    local_lens: tuple[tuple[int, ...], ...] | None


def context_view(record: Any) -> ContextView | None:
    """Return the view of a chunked-context record of either shape; None for None.

    Sync: none
    """
    if record is None:
        return None
    return _chunk_shape(record) if hasattr(record, "chunks") else _field_shape(record)


def _chunk_shape(record: Any) -> ContextView:
    """Return the view of the shape since 0.28."""
    chunks = []
    local: dict[int, tuple[int, ...]] = {}
    for index, chunk in enumerate(record.chunks):
        lens, first = host_copy(chunk.seq_lens), chunk.request_slice.start
        ranks = chunk.local_context_lens_allranks
        if ranks:
            local.update({first + row: tuple(values) for row, values in enumerate(ranks)})
        view = ChunkView(f"chunks[{index}]", first, _NO_LENS if lens is None else lens, chunk)
        view.total, view.local_total = chunk.num_context_tokens, chunk.num_local_context_tokens
        view.max_len, view.padded_local = chunk.max_seq_len, chunk.padded_local_seq_lens
        view.cu_seq_lens, view.starts, view.token_to_seq = chunk.cu_seq_lens, chunk.starts, chunk.token_to_seq
        view.padded_cu_seq_lens = getattr(chunk, "padded_local_cu_seq_lens", None)
        view.padded_token_to_seq = getattr(chunk, "padded_local_token_to_seq", None)
        chunks.append(view)
    context_lens = record.context_lens_list
    return ContextView(
        CHUNK_SHAPE,
        tuple(chunks),
        context_lens,
        record.workspace,
        None,
        tuple(record.empty_token_slices),
        tuple(local.get(row, ()) for row in range(len(context_lens))) if local else None,
    )


def _field_shape(record: Any) -> ContextView:
    """Return the view of the shape up to 0.27."""
    padded = record.padded_local_chunk_seq_lens
    matrix = host_copy(record.seq_lens)
    rows = [] if matrix is None else list(matrix)
    padded_sums = getattr(record, "padded_local_cu_seq_lens", None)
    chunks = []
    for index, row in enumerate(rows):
        view = ChunkView(f"seq_lens[{index}]", 0, row)
        view.total, view.local_total = int(record.chunk_total_token[index]), record.seq_tot[index]
        view.max_len, view.padded_local = record.max_seq_lens[index], None if padded is None else padded[index]
        view.cu_seq_lens, view.starts = record.cu_seq_lens[index], record.starts[index]
        view.token_to_seq = record.token_to_seq[index]
        view.padded_cu_seq_lens = None if padded_sums is None else padded_sums[index]
        view.padded_token_to_seq = None
        chunks.append(view)
    local = record.local_context_lens_allranks
    return ContextView(
        FIELD_SHAPE,
        tuple(chunks),
        None,
        record.workspace,
        tuple(record.has_empty_context),
        None,
        None if local is None else tuple(tuple(row) for row in local),
    )


def subjects_of(obj: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield (path, record) for every metadata record in what an engine passes around.

    None yields nothing; a dict by layer and a list of dicts (micro-batches, drafting) yield their records once each.
    """
    yield from _flatten(obj, path, set())


def _flatten(obj: object, path: str, seen: set[int]) -> Iterator[tuple[str, object]]:
    """Yield records, each object once."""
    if obj is None or id(obj) in seen:
        return
    seen.add(id(obj))
    if isinstance(obj, Mapping):
        for key, value in obj.items():
            yield from _flatten(value, f"{path}[{key}]", seen)
    elif isinstance(obj, list | tuple):
        for index, value in enumerate(obj):
            yield from _flatten(value, f"{path}[{index}]", seen)
    else:
        yield f"{type(obj).__name__}{path}", obj
