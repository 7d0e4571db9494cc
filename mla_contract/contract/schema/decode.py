"""The decode record: what a dense decode kernel reads of the leading requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jaxtyping import Int32
    from torch import Tensor

    from mla_contract.contract.schema.residence import Device


class DecodeMetadata(Protocol):
    """The decode requests of one batch; rows are requests, or tokens where a multi-token decode is flattened."""

    @property
    def block_table(self) -> Device[Int32[Tensor, "num_decode_rows max_blocks"]]:
        """Physical block ids of each decode row, in order of position.

        Padding: padding rows hold the null block.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def seq_lens(self) -> Device[Int32[Tensor, "num_decode_rows"]]:
        """Cache length of each decode row, in tokens, as this rank stores it: local under decode context parallelism.

        Padding: exactly 0 on padding rows, never negative; a local 0 gives LSE -inf.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def dcp_tot_seq_lens(self) -> Device[Int32[Tensor, "num_decode_rows"]] | None:
        """Cache length over all ranks, in tokens, taken before localisation; None without decode context parallelism.

        Padding: 0 on padding rows.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...
