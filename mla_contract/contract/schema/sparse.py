"""The sparse tier: what the shared layer and the top-k kernels need when each token attends to selected positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mla_contract.contract.schema.core import MLAMetadata

if TYPE_CHECKING:
    from jaxtyping import Int32
    from torch import Tensor

    from mla_contract.contract.schema.residence import Device


class HasBlockTable(Protocol):
    """Has ``block_table``."""

    @property
    def block_table(self) -> Device[Int32[Tensor, "num_reqs max_blocks"]]:
        """Physical block ids of each request, in order of position; contiguous along a row.

        Padding: columns behind a request's last block are undefined; padding rows hold the null block.
        Source: vLLM 0.33.0 model_executor/layers/attention/sparse_mla_attention.py
        """
        ...


class HasReqIdPerToken(Protocol):
    """Has ``req_id_per_token``."""

    @property
    def req_id_per_token(self) -> Device[Int32[Tensor, "num_kernel_rows"]]:
        """Request-local owner of each token: a row of ``block_table``.

        Padding: padding tokens own row 0, whose blocks they must not write.
        Source: vLLM 0.33.0 v1/attention/backends/mla/rocm_aiter_mla_sparse.py
        """
        ...


class HasTopkTokens(Protocol):
    """Has ``topk_tokens``."""

    @property
    def topk_tokens(self) -> int:
        """Positions that the indexer selects for each token, in tokens; a constant of the model.

        Padding: a token with fewer candidates pads its row with -1.
        Source: vLLM 0.33.0 model_executor/layers/attention/sparse_mla_attention.py
        """
        ...


class HasBlockSize(Protocol):
    """Has ``block_size``."""

    @property
    def block_size(self) -> int:
        """Tokens of one block as the kernel's block table counts them, in tokens.

        Padding: none.
        Source: vLLM 0.33.0 model_executor/layers/attention/sparse_mla_attention.py
        """
        ...


class HasPrefillMaxSeqLen(Protocol):
    """Has ``prefill_max_seq_len``."""

    @property
    def prefill_max_seq_len(self) -> int:
        """Longest sequence among the prefill requests, in tokens; 0 when there are none.

        The layer compares it with ``topk_tokens`` to choose dense prefill: a forgotten 0 always chooses it.

        Padding: ignores padding requests.
        Source: vLLM 0.33.0 model_executor/layers/attention/mla_attention.py
        """
        ...


class HasSeqLens(Protocol):
    """Has ``seq_lens``."""

    @property
    def seq_lens(self) -> Device[Int32[Tensor, "num_reqs"]] | None:
        """Cached and new tokens of each request, in tokens, on the device; read under decode context parallelism.

        Padding: 0 for a padding request.
        Source: vLLM 0.33.0 model_executor/layers/attention/sparse_mla_attention.py
        """
        ...


class HasDecodeMaxQueryLen(Protocol):
    """Has ``decode_max_query_len``."""

    @property
    def decode_max_query_len(self) -> int:
        """Longest query among the decode requests, in tokens; 0 when there are none.

        Padding: bounds padding requests too.
        Source: vLLM 0.33.0 model_executor/layers/attention/sparse_mla_attention.py
        """
        ...


class SparseMetadata(
    HasBlockTable,
    HasReqIdPerToken,
    HasTopkTokens,
    HasBlockSize,
    HasPrefillMaxSeqLen,
    HasSeqLens,
    HasDecodeMaxQueryLen,
    Protocol,
):
    """The sparse tier by itself."""


class SparseMLAMetadata(MLAMetadata, SparseMetadata, Protocol):
    """What the shared layer may read of a sparse backend's metadata: counts, core and sparse."""
