"""The prefill record: what dense prefill reads of the trailing requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jaxtyping import Int32, Shaped
    from torch import Tensor, dtype

    from mla_contract.contract.schema.context import ChunkContext, FieldContext
    from mla_contract.contract.schema.residence import Device, Host


class PrefillMetadata(Protocol):
    """The prefill requests of one batch, renumbered from 0."""

    @property
    def block_table(self) -> Device[Int32[Tensor, "num_prefills max_blocks"]]:
        """Physical block ids of each prefill request, in order of position.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def query_start_loc(self) -> Device[Int32[Tensor, "num_prefills+1"]]:
        """Prefix sum of the prefill query lengths, in tokens; starts at 0 again.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def max_query_len(self) -> int:
        """Longest prefill query, in tokens.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def chunked_context(self) -> FieldContext | ChunkContext | None:
        """Plan for the cached context of the prefills; None exactly when no prefill has cached tokens.

        One record of parallel lists up to 0.27, one record for each chunk since 0.28; a consumer states which it reads.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def q_data_type(self) -> dtype | None:
        """Element type of the query handed to the prefill kernel; None means the model's.

        Padding: none.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def output_dtype(self) -> dtype | None:
        """Element type of the prefill output; None means the model's.

        Padding: none.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...


class DensePrefillMetadata(PrefillMetadata, Protocol):
    """The prefill record with what sparse backends need to run dense prefill; since 0.27."""

    @property
    def query_lens_cpu(self) -> Host[Int32[Tensor, "num_prefills"]] | None:
        """Query length of each prefill, in tokens, on the host.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def use_dense_mha(self) -> bool:
        """Whether this batch's prefills attend densely; only where layer, impl and cache layout all allow it.

        Padding: none.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def topk_mask_workspace(self) -> Device[Shaped[Tensor, "..."]] | None:
        """Scratch for the mask of selected positions when masked dense attention is available.

        Padding: contents are undefined between layers.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...
