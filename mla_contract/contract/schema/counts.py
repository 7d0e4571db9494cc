"""The five counts that the shared layer reads of every MLA metadata, unconditionally.

Each member stands in a Protocol of its own, so that a type checker can name every member that a class lacks.
"""

from __future__ import annotations

from typing import Protocol


class HasNumReqs(Protocol):
    """Has ``num_reqs``."""

    @property
    def num_reqs(self) -> int:
        """Requests in the batch, in requests; decodes stand before prefills.

        Padding: includes padding requests when the engine pads the batch for graph replay.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...


class HasNumActualTokens(Protocol):
    """Has ``num_actual_tokens``."""

    @property
    def num_actual_tokens(self) -> int:
        """Query tokens that the builder was given, in tokens; equals the last entry of ``query_start_loc``.

        Padding: despite its name it may include padding tokens; requests and tokens are padded together or not at all.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...


class HasNumDecodes(Protocol):
    """Has ``num_decodes``."""

    @property
    def num_decodes(self) -> int:
        """Leading requests that are routed to the decode path, in requests.

        Padding: a padding request counts as a decode. A backend that routes all through decode sets ``num_reqs``.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...


class HasNumPrefills(Protocol):
    """Has ``num_prefills``."""

    @property
    def num_prefills(self) -> int:
        """Trailing requests that are routed to the prefill path; ``num_decodes + num_prefills == num_reqs``.

        Padding: padding requests never start the prefill region.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...


class HasNumDecodeTokens(Protocol):
    """Has ``num_decode_tokens``."""

    @property
    def num_decode_tokens(self) -> int:
        """Query tokens of the decode requests, in tokens; equals ``query_start_loc[num_decodes]``.

        The shared layer hands exactly this many leading rows to the decode kernel.

        Padding: includes the padding tokens of a padded decode batch.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...


class CountsMetadata(
    HasNumReqs,
    HasNumActualTokens,
    HasNumDecodes,
    HasNumPrefills,
    HasNumDecodeTokens,
    Protocol,
):
    """The counts tier: how many requests and tokens there are, and where decode ends."""
