"""Kernel providers: the operations of the sparse path, one frozen input record each, and who can run them.

An operation's record names everything that a kernel reads or writes, so a provider can say beforehand why it cannot
run. Records hold references; arrays called ``out`` are written in place. Records compare by identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from mla_contract.contract.schema.persistent_work import WorkBuffers, WorkConfig, WorkSizes

if TYPE_CHECKING:
    from jaxtyping import Float, Float32, Int32, Int64, Shaped
    from torch import Tensor, dtype

R = TypeVar("R")

LOGITS_ALIGNMENT = 256
"""Row strides of logits are multiples of this many elements: kernels store whole column blocks."""


class Operation(Generic[R]):
    """Inputs of one kernel call that returns ``R``."""

    __slots__ = ()


class KernelProvider(Protocol):
    """One library of kernels."""

    @property
    def name(self) -> str:
        """Name in the registry and in ``MLA_CONTRACT_PROVIDER``."""
        ...

    def reason(self, inputs: Operation[Any]) -> str | None:
        """Return why this provider cannot run ``inputs``, or None when it can.

        Sync: none
        """
        ...

    def run(self, inputs: Operation[R]) -> R:
        """Run the operation.

        Raises:
            NoProvider: If ``reason`` gives one; nothing has been written then.
        """
        ...


SHUFFLE_TILE = 16
"""Tokens and dims of a tile of the shuffled key layout: blocks hold whole tiles."""


class KeyLayout(StrEnum):
    """Where the bytes of a key lie inside a page of the quantised indexer cache."""

    NORMAL = "normal"
    """Token after token: byte ``token * head_dim + dim``."""
    SHUFFLE = "shuffle"
    """Tiles of 16 tokens by 16 dims: token tiles outside, dim tiles inside, then token, then dim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerCacheFormat:
    """How the indexer's cache stores a key.

    A quantised page is flat: the values of all its tokens, then the float32 scales of all its tokens in token order.

    Attributes:
        head_dim: Elements of a key.
        fp8_dtype: Element type of quantised values, one of torch's e4m3 flavours; None for a float cache.
        layout: Order of the value bytes; scales are never shuffled. A float cache is always NORMAL.
        group: Consecutive elements of a key that share a scale.
        power_of_two_scale: Whether scales are rounded up to a power of two (ue8m0).
    """

    head_dim: int
    fp8_dtype: dtype | None
    layout: KeyLayout = KeyLayout.NORMAL
    group: int = 128
    power_of_two_scale: bool = True

    @property
    def groups(self) -> int:
        """Scales of a key."""
        return -(-self.head_dim // self.group)

    @property
    def width(self) -> int:
        """Elements of the cache's last axis: bytes of values and scales, or the elements of a float key."""
        return self.head_dim if self.fp8_dtype is None else self.head_dim + 4 * self.groups


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WriteIndexerK(Operation[None]):
    """Write the keys of new tokens to the indexer's cache, quantising them if the format says so.

    Attributes:
        k: Keys of the batch's tokens; only the first ``len(slot_mapping)`` are written.
        slot_mapping: Physical slot of each token; negative ones are not stored.
        cache: Written in place; uint8 when quantised.
        format: How the cache stores keys.
    """

    k: Float[Tensor, "num_tokens head_dim"]
    slot_mapping: Int64[Tensor, "num_slots"]
    cache: Shaped[Tensor, "num_blocks block_size width"]
    format: IndexerCacheFormat


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GatherIndexerK(Operation[None]):
    """Gather the keys of a chunk's requests, request after request, into the caller's buffer.

    Attributes:
        cache: The indexer's cache.
        format: How the cache stores keys.
        block_table: Physical block ids of the chunk's requests.
        cu_seq_lens: Prefix sum of the keys of each request.
        num_keys: Its last entry, known on the host; rows of the outputs behind it are not written.
        k_out: Values, unscaled: fp8 or uint8 when quantised, else the cache's type. May be longer than ``num_keys``.
        scale_out: Scales; None for a float cache.
    """

    cache: Shaped[Tensor, "num_blocks block_size width"]
    format: IndexerCacheFormat
    block_table: Int32[Tensor, "chunk_reqs max_blocks"]
    cu_seq_lens: Int32[Tensor, "chunk_reqs+1"]
    num_keys: int
    k_out: Shaped[Tensor, "key_capacity head_dim"]
    scale_out: Float32[Tensor, "key_capacity groups"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkLogits(Operation["Tensor"]):
    """Score a chunk's gathered keys: for each token the sum over heads of ``relu(q . k) * k_scale * weight``.

    Returns float32 logits whose row stride is a multiple of 256. Columns outside a token's window are unspecified:
    whoever reads them must go by the windows.

    Attributes:
        q: Queries; the scale of quantised queries is folded into ``weights``.
        k: Gathered keys, in the element type of ``q``.
        k_scale: Scale of each key; None for float keys.
        weights: Weight of each head; may be negative.
        starts: First column of each token's window, a row of ``k``.
        ends: End of each token's window; an end at or before the start is an empty window.
    """

    q: Shaped[Tensor, "chunk_tokens num_heads head_dim"]
    k: Shaped[Tensor, "num_keys head_dim"]
    k_scale: Float32[Tensor, "num_keys"] | None
    weights: Float32[Tensor, "chunk_tokens num_heads"]
    starts: Int32[Tensor, "chunk_tokens"]
    ends: Int32[Tensor, "chunk_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PagedLogits(Operation[None]):
    """Score cached keys for decode: row ``b * next_n + n`` sees the first ``context_lens[b] - next_n + n + 1`` keys.

    Attributes:
        q: Queries; the scale of quantised queries is folded into ``weights``.
        cache: The indexer's cache.
        format: How the cache stores keys.
        weights: Weight of each head, row by row.
        context_lens: Keys of each request, the new tokens included; 0 on padding.
        block_table: Physical block ids of each request.
        max_model_len: Longest sequence, in tokens; bounds the columns that a kernel may write on purpose.
        out: Logits. Columns behind a row's keys are unspecified. The row stride is a multiple of 256 and at least
            ``max_model_len``: kernels store whole blocks.
    """

    q: Shaped[Tensor, "num_reqs next_n num_heads head_dim"]
    cache: Shaped[Tensor, "num_blocks block_size width"]
    format: IndexerCacheFormat
    weights: Float32[Tensor, "num_reqs*next_n num_heads"]
    context_lens: Int32[Tensor, "num_reqs"]
    block_table: Int32[Tensor, "num_reqs max_blocks"]
    max_model_len: int
    out: Float32[Tensor, "num_reqs*next_n columns"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TopkRows(Operation[None]):
    """Select the columns with the largest logits in each row's window.

    Attributes:
        logits: Scores; only the windows are read.
        starts: First column of each row's window; None for 0.
        ends: End of each row's window; an end at or before the start selects nothing.
        topk: Columns to select.
        out: Positions counted from the window's start; a row with fewer candidates selects all, in order, and is padded
            with -1 behind them. Their order in a longer row is unspecified. Contiguous.
        stable: Whether ties must go to the smaller position; otherwise the choice among ties is unspecified.
    """

    logits: Float32[Tensor, "num_rows columns"]
    starts: Int32[Tensor, "num_rows"] | None
    ends: Int32[Tensor, "num_rows"]
    topk: int
    out: Int32[Tensor, "num_rows topk"]
    stable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapSlots(Operation[None]):
    """Map request-local positions to physical slots: ``block * block_size + offset``.

    Attributes:
        positions: Request-local positions; -1 pads.
        req_id_per_token: Row of ``block_table`` that owns each token.
        block_table: Physical block ids of each request.
        block_size: Tokens of one block.
        out: Physical slots; -1 for padding, for positions behind the table and for blocks that are negative.
    """

    positions: Int32[Tensor, "num_tokens topk"]
    req_id_per_token: Int32[Tensor, "num_tokens"]
    block_table: Int32[Tensor, "num_reqs max_blocks"]
    block_size: int
    out: Int32[Tensor, "num_tokens topk"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizeWork(Operation[WorkSizes]):
    """Ask how large the work buffers of a configuration must be."""

    config: WorkConfig


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FillWork(Operation[None]):
    """Plan the work of a batch into existing buffers, whose addresses do not change.

    Attributes:
        buffers: Written in place.
        kv_indptr: Prefix sum of the entries of each row, as the attention will get it; starts at 0.
    """

    buffers: WorkBuffers
    kv_indptr: Int32[Tensor, "num_rows+1"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SparseAttention(Operation[None]):
    """Attend from each row to its selected slots.

    With ``s = q . k * softmax_scale * q_scale * kv_scale``, the output is ``softmax(s)`` times the first ``v_dim``
    elements of the selected cache rows, times ``kv_scale``. A slot that is selected twice counts twice.

    Attributes:
        q: Queries of each row; a row is one token.
        kv_cache: Cache rows by slot; latent part first, then the rope part.
        kv_indptr: Prefix sum of the entries of each row; starts at 0, padding rows repeat the last offset.
        kv_indices: Physical slots; -1 entries are excluded; entries behind the last offset are not read.
        out: A row without an entry becomes 0.
        softmax_scale: Scale of the scores.
        lse: Natural logarithm of the sum over the row's entries of ``exp(s)``, sinks not included; -inf for a row
            without an entry. None when it is not wanted.
        sinks: Score of each head's sink: it takes part in the softmax's sum and adds no value.
        q_scale: Scale of quantised queries; None for 1.
        kv_scale: Scale of the quantised cache; None for 1.
        work: Persistent work, filled for ``kv_indptr``; None lets the provider choose.
        has_invalid: Whether a row's range may hold -1; False is a promise.
        has_empty_rows: Whether a row may have no entry; False is a promise.
    """

    q: Shaped[Tensor, "num_rows num_heads width"]
    kv_cache: Shaped[Tensor, "num_slots width"]
    kv_indptr: Int32[Tensor, "num_rows+1"]
    kv_indices: Int32[Tensor, "capacity"]
    out: Float[Tensor, "num_rows num_heads v_dim"]
    softmax_scale: float
    lse: Float32[Tensor, "num_rows num_heads"] | None = None
    sinks: Float32[Tensor, "num_heads"] | None = None
    q_scale: Float32[Tensor, "1"] | None = None
    kv_scale: Float32[Tensor, "1"] | None = None
    work: WorkBuffers | None = None
    has_invalid: bool = True
    has_empty_rows: bool = True


def padded_columns(columns: int) -> int:
    """Return the smallest row stride of logits that holds ``columns`` and is a multiple of 256."""
    return -(-columns // LOGITS_ALIGNMENT) * LOGITS_ALIGNMENT
