"""The core tier: what the shared MLA layer needs of any backend beyond the counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mla_contract.contract.schema.counts import CountsMetadata

if TYPE_CHECKING:
    from jaxtyping import Int32, Int64
    from torch import Tensor

    from mla_contract.contract.schema.decode import DecodeMetadata
    from mla_contract.contract.schema.prefill import PrefillMetadata
    from mla_contract.contract.schema.residence import Device


class HasQueryStartLoc(Protocol):
    """Has ``query_start_loc``."""

    @property
    def query_start_loc(self) -> Device[Int32[Tensor, "num_reqs+1"]]:
        """Prefix sum of the query lengths, in tokens, on the device; starts at 0 and never falls.

        Padding: a padding request repeats the last offset, or adds the uniform length of a padded decode batch.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...


class HasSlotMapping(Protocol):
    """Has ``slot_mapping``."""

    @property
    def slot_mapping(self) -> Device[Int64[Tensor, "num_padded_tokens"]]:
        """Physical cache slot of each token: ``block id * block size + offset``; live slots are pairwise distinct.

        Padding: -1 says that the token is not stored on this rank; it does not say that the token has no query.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...


class HasMaxQueryLen(Protocol):
    """Has ``max_query_len``."""

    @property
    def max_query_len(self) -> int:
        """Longest query, in tokens; an upper bound, not always attained.

        Padding: bounds the padding requests too.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...


class HasMaxSeqLen(Protocol):
    """Has ``max_seq_len``."""

    @property
    def max_seq_len(self) -> int:
        """Longest sequence (cached and new tokens), in tokens; an upper bound, not always attained.

        Padding: while a graph is captured it is the longest sequence that the model allows.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...


class HasPrefill(Protocol):
    """Has ``prefill``."""

    @property
    def prefill(self) -> PrefillMetadata | None:
        """Record of the prefill requests; None when there are none, or when the backend has no dense prefill.

        Padding: describes no padding request.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...


class HasDecode(Protocol):
    """Has ``decode``."""

    @property
    def decode(self) -> DecodeMetadata | None:
        """Record of the decode requests; None when there are none, or when a sparse backend describes tokens itself.

        Padding: its rows cover the padding requests of a padded decode batch.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...


class CoreMetadata(
    HasQueryStartLoc,
    HasSlotMapping,
    HasMaxQueryLen,
    HasMaxSeqLen,
    HasPrefill,
    HasDecode,
    Protocol,
):
    """The core tier: the batch's geometry, and the two nested records."""


class MLAMetadata(CountsMetadata, CoreMetadata, Protocol):
    """What the shared layer may read of any MLA metadata: counts and core."""
