"""Records that a layer of its own reads, not the shared one: sliding windows, compressed caches, and the compressor.

Which of them a record is follows from the members that its readers take, never from the name of its class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from mla_contract.contract.schema.core import HasQueryStartLoc, HasSlotMapping
from mla_contract.contract.schema.counts import HasNumDecodes, HasNumDecodeTokens, HasNumPrefills
from mla_contract.contract.schema.sparse import HasBlockSize, HasBlockTable, HasReqIdPerToken, HasTopkTokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Int32
    from torch import Tensor

    from mla_contract.contract.schema.residence import Device, Host


class TokenOwners(Protocol):
    """Has ``token_to_req_indices``."""

    @property
    def token_to_req_indices(self) -> Device[Int32[Tensor, "num_actual_tokens"]]:
        """Request of each token: a row of ``block_table``.

        Padding: padding tokens own any row of the batch; their slot is -1.
        Source: vLLM 0.32.0 models/deepseek_v4/compressor.py
        """
        ...


class WindowMetadata(
    HasBlockTable,
    HasSlotMapping,
    HasBlockSize,
    HasQueryStartLoc,
    TokenOwners,
    HasNumDecodes,
    HasNumPrefills,
    HasNumDecodeTokens,
    Protocol,
):
    """What a layer reads of its sliding-window cache: one row of slots for each token, decodes before prefills."""

    @property
    def num_prefill_tokens(self) -> int:
        """Query tokens of the prefill requests, in tokens.

        Padding: none; padding requests are decodes.
        Source: vLLM 0.33.0 v1/attention/backends/mla/sparse_swa.py
        """
        ...

    @property
    def seq_lens(self) -> Device[Int32[Tensor, "num_reqs"]]:
        """Cached and new tokens of each request, in tokens.

        Padding: 0 for a padding request.
        Source: vLLM 0.33.0 v1/attention/backends/mla/sparse_swa.py
        """
        ...

    @property
    def is_valid_token(self) -> Device[Bool[Tensor, "num_padded_tokens"]]:
        """Whether a token is stored: its slot is not -1.

        Padding: False.
        Source: vLLM 0.33.0 v1/attention/backends/mla/sparse_swa.py
        """
        ...

    @property
    def decode_swa_indices(self) -> Device[Int32[Tensor, "num_decode_tokens 1 window_width"]]:
        """Slots of the keys that each decode token sees in its window, the oldest first.

        Padding: -1 behind a token's last key, and in the whole row of a token that is not stored.
        Source: vLLM 0.33.0 v1/attention/backends/mla/sparse_swa.py
        """
        ...

    @property
    def decode_swa_lens(self) -> Device[Int32[Tensor, "num_decode_tokens"]]:
        """Keys in the window of each decode token, its own among them.

        Padding: 0 for a token that is not stored.
        Source: vLLM 0.33.0 v1/attention/backends/mla/sparse_swa.py
        """
        ...

    @property
    def prefill_swa_indices(self) -> Device[Int32[Tensor, "num_prefill_tokens 1 prefill_width"]] | None:
        """Slots of the keys that each prefill token sees in its window; wider where images see keys behind a token.

        Padding: as for ``decode_swa_indices``.
        Source: vLLM 0.33.0 v1/attention/backends/mla/sparse_swa.py
        """
        ...

    @property
    def prefill_swa_lens(self) -> Device[Int32[Tensor, "num_prefill_tokens"]] | None:
        """Keys in the window of each prefill token; None when there are no prefills.

        Padding: 0 for a token that is not stored.
        Source: vLLM 0.33.0 v1/attention/backends/mla/sparse_swa.py
        """
        ...

    @property
    def prefill_seq_lens(self) -> Device[Int32[Tensor, "num_prefills"]] | None:
        """``seq_lens`` of the prefill requests; None when there are none.

        Padding: none; padding requests are decodes.
        Source: vLLM 0.33.0 v1/attention/backends/mla/sparse_swa.py
        """
        ...

    @property
    def prefill_seq_lens_cpu(self) -> Host[Int32[Tensor, "num_prefills"]] | None:
        """Host upper bound of ``prefill_seq_lens``, by which prefill chunks are planned; None when there are none.

        Padding: none; padding requests are decodes.
        Source: vLLM 0.33.0 v1/attention/backends/mla/sparse_swa.py
        """
        ...

    @property
    def prefill_gather_lens(self) -> Device[Int32[Tensor, "num_prefills"]] | None:
        """Keys that are gathered for each prefill: its queries and at most ``window - 1`` tokens before them.

        Padding: none; padding requests are decodes.
        Source: vLLM 0.33.0 v1/attention/backends/mla/sparse_swa.py
        """
        ...

    @property
    def prefill_query_lens_cpu(self) -> Host[Int32[Tensor, "num_prefills"]] | None:
        """Query tokens of each prefill, on the host; None when there are none.

        Padding: none; padding requests are decodes.
        Source: vLLM 0.33.0 v1/attention/backends/mla/sparse_swa.py
        """
        ...


class CompressedMetadata(
    HasBlockTable, HasSlotMapping, HasBlockSize, HasQueryStartLoc, HasReqIdPerToken, HasTopkTokens, Protocol
):
    """What a layer reads of its compressed cache, where a slot holds the state of several tokens."""


class StateRowsMetadata(CompressedMetadata, Protocol):
    """A compressed cache that few states fit: each token's row lists all of them, so that no indexer selects."""

    @property
    def c128a_global_decode_topk_indices(self) -> Device[Int32[Tensor, "state_decodes 1 state_width"]] | None:
        """Slots of every state that each decode token sees, the oldest first; None for other ratios or no decodes.

        Padding: -1 behind a token's last state.
        Source: vLLM 0.33.0 models/deepseek_v4/sparse_mla.py
        """
        ...

    @property
    def c128a_decode_topk_lens(self) -> Device[Int32[Tensor, "state_decodes"]] | None:
        """States that each decode token sees: ``(position + 1) // ratio``; None as above.

        Padding: 0 for a token that is not stored.
        Source: vLLM 0.33.0 models/deepseek_v4/sparse_mla.py
        """
        ...

    @property
    def c128a_prefill_topk_indices(self) -> Device[Int32[Tensor, "state_prefills state_width"]] | None:
        """Request-local states that each prefill token sees, 0, 1, 2, ...; None for other ratios or no prefills.

        Padding: -1 behind a token's last state.
        Source: vLLM 0.33.0 models/deepseek_v4/sparse_mla.py
        """
        ...


class CompressorMetadata(HasSlotMapping, TokenOwners, HasBlockTable, HasBlockSize, Protocol):
    """What a compressor reads that keeps the tokens of an open state in pages."""


class RingCompressorMetadata(HasSlotMapping, TokenOwners, HasQueryStartLoc, Protocol):
    """What a compressor reads that keeps the tokens of an open state in one ring a request."""


MARKS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "window": ("decode_swa_indices", "decode_swa_lens"),
        "compressed": ("req_id_per_token", "topk_tokens"),
        "compressor": ("slot_mapping", "token_to_req_indices"),
    }
)
"""The members by which each kind of record is known, the most telling kind first."""


def layer_kind(has: Callable[[str], bool]) -> str | None:
    """Return the kind of a record that a layer of its own reads, or None.

    Args:
        has: Whether the record, or its class, has a member.
    """
    return next((kind for kind, marks in MARKS.items() if all(map(has, marks))), None)
