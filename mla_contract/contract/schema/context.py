"""Chunked context of prefills, in both shapes found in the wild.

Cached context is gathered into a workspace of limited rows, one chunk after the other. Up to 0.27 one record holds
parallel lists over chunks; since 0.28 each chunk is a record that names its own requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Int32, Shaped
    from torch import Tensor

    from mla_contract.contract.schema.residence import Device, Host


class FieldContext(Protocol):
    """The shape up to 0.27: every field is a list, or a matrix, over chunks."""

    @property
    def cu_seq_lens(self) -> Device[Int32[Tensor, "num_chunks num_prefills+1"]]:
        """Prefix sums of the context tokens of each request in each chunk.

        Padding: a request without tokens in a chunk adds 0.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def starts(self) -> Device[Int32[Tensor, "num_chunks num_prefills"]]:
        """First context position of each request in each chunk, in tokens; local under decode context parallelism.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def seq_tot(self) -> list[int]:
        """Context tokens that each chunk gathers on this rank; never more than the workspace's rows.

        Padding: includes the interleave padding of local lengths.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def max_seq_lens(self) -> list[int]:
        """Longest context slice in each chunk, in tokens.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def seq_lens(self) -> Host[Int32[Tensor, "num_chunks num_prefills"]]:
        """Context tokens of each request in each chunk, on the host.

        Padding: 0 for a request that has none in this chunk.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def workspace(self) -> Device[Shaped[Tensor, "workspace_rows row_width"]]:
        """Scratch rows that the gather writes; its dtype decides between raw copy and dequantisation.

        Padding: rows behind a chunk's total are stale.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def token_to_seq(self) -> Device[Int32[Tensor, "num_chunks max_chunk_tokens"]]:
        """Prefill-local owner of each gathered token.

        Padding: 0 behind a chunk's total.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def chunk_total_token(self) -> list[int] | Host[Shaped[Tensor, "num_chunks"]]:
        """Context tokens of each chunk over all ranks; an array without context parallelism, whatever its annotation.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def has_empty_context(self) -> list[bool]:
        """Whether a chunk holds a request without tokens, whose output is 0 and whose LSE is -inf.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def padded_local_chunk_seq_lens(self) -> list[list[int]] | None:
        """Local context tokens of each request in each chunk, rounded up to the interleave; None without DCP.

        Padding: the same on every rank, so that collectives have one width.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def local_context_lens_allranks(self) -> list[list[int]] | None:
        """True local context length of each request on each rank, in tokens; None without DCP.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def padded_local_cu_seq_lens(self) -> Device[Int32[Tensor, "num_chunks num_prefills+1"]] | None:
        """Prefix sums of the padded local lengths; None without DCP.

        Padding: as the lengths.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def cu_seq_lens_lst(self) -> list[list[int]] | None:
        """Host copy of ``cu_seq_lens``; None without DCP.

        Padding: as the device copy.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def chunk_size(self) -> int | None:
        """Padded local length of a full chunk, in tokens; None without DCP.

        Padding: a multiple of the interleave.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...


class FieldContextLens(FieldContext, Protocol):
    """The shape of 0.27, which adds the context lengths on the device."""

    @property
    def context_lens(self) -> Device[Int32[Tensor, "num_prefills"]]:
        """Cached tokens of each prefill, on the device.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.27.1 model_executor/layers/attention/mla_attention.py
        """
        ...


class ContextChunk(Protocol):
    """One chunk of the shape since 0.28: a run of prefills whose context fits the workspace."""

    @property
    def index(self) -> int:
        """Position of the chunk in the plan.

        Padding: none.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def request_slice(self) -> slice:
        """Prefill-local requests of this chunk.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def token_slice(self) -> slice:
        """Prefill-local query tokens of those requests.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def is_continuation(self) -> bool:
        """Whether the first request's context began in an earlier chunk, so that its partial results must be merged.

        Padding: none.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def continuation_token_end(self) -> int:
        """End of the first request's query tokens, prefill-local.

        Padding: none.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def num_context_tokens(self) -> int:
        """Context tokens of the chunk over all ranks; the last entry of ``cu_seq_lens``.

        Padding: none.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def query_start_loc(self) -> Device[Int32[Tensor, "chunk_reqs+1"]]:
        """Prefix sum of the chunk's query lengths, from 0.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def max_query_len(self) -> int:
        """Longest query of the chunk, in tokens; exact.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def cu_seq_lens(self) -> Device[Int32[Tensor, "chunk_reqs+1"]]:
        """Prefix sum of the chunk's context lengths, from 0.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def starts(self) -> Device[Int32[Tensor, "chunk_reqs"]]:
        """First context position of each request in the chunk, in tokens; local under decode context parallelism.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def max_seq_len(self) -> int:
        """Longest context slice of the chunk, in tokens; exact.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def seq_lens(self) -> Host[Int32[Tensor, "chunk_reqs"]]:
        """Context tokens of each request in the chunk, on the host.

        Padding: never 0: empty requests are left out of chunks.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def token_to_seq(self) -> Device[Int32[Tensor, "num_context_tokens"]]:
        """Chunk-local owner of each gathered token; never falls.

        Padding: none.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def all_rows_active(self) -> bool:
        """Whether every request of the chunk has query tokens and context tokens.

        Padding: none.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def padded_local_seq_lens(self) -> list[int] | None:
        """Local context tokens of each request, rounded up to the interleave; None without DCP.

        Padding: the same on every rank.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def local_context_lens_allranks(self) -> list[list[int]] | None:
        """True local context length of each request on each rank, in tokens; None without DCP.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def padded_local_cu_seq_lens(self) -> Device[Int32[Tensor, "chunk_reqs+1"]] | None:
        """Prefix sum of the padded local lengths; None without DCP.

        Padding: as the lengths.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def padded_local_token_to_seq(self) -> Device[Int32[Tensor, "num_local_context_tokens"]] | None:
        """Chunk-local owner of each row gathered on this rank; None without DCP.

        Padding: covers padding rows.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def num_local_context_tokens(self) -> int:
        """Rows that this rank gathers; never more than the workspace's share of a rank.

        Padding: includes interleave padding.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def local_starts(self) -> list[int] | None:
        """Host copy of the local starts; None without DCP.

        Padding: none.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...


class ChunkContext(Protocol):
    """The shape since 0.28: one record for each chunk."""

    @property
    def context_lens(self) -> Device[Int32[Tensor, "num_prefills"]]:
        """Cached tokens of each prefill, on the device.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def workspace(self) -> Device[Shaped[Tensor, "workspace_rows row_width"]]:
        """Scratch rows that the gather writes; its dtype decides between raw copy and dequantisation.

        Padding: rows behind a chunk's total are stale.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def chunks(self) -> Sequence[ContextChunk]:
        """Chunks in order; for each request they partition its context without overlap or gap.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def context_lens_list(self) -> list[int]:
        """Host copy of ``context_lens``.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...

    @property
    def empty_token_slices(self) -> list[slice]:
        """Query tokens of the prefills without context, whose context output is 0 and whose LSE is -inf.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...
