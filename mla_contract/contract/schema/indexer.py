"""The lightning indexer's record: which keys are scored, for which tokens, in which chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Int32, Int64, Shaped
    from torch import Tensor

    from mla_contract.contract.schema.residence import Device


class IndexerChunk(Protocol):
    """One prefill chunk: a run of requests, or a slice of one request's tokens, whose logits fit the budget."""

    @property
    def block_table(self) -> Device[Int32[Tensor, "chunk_reqs max_blocks"]]:
        """Physical block ids of the chunk's requests in the indexer's cache.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def cu_seqlen_ks(self) -> Device[Int32[Tensor, "chunk_tokens"]]:
        """First gathered key of each token: the row start of its request, in states.

        Padding: none.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def cu_seqlen_ke(self) -> Device[Int32[Tensor, "chunk_tokens"]]:
        """End of the keys that each token may see, in states; never less than its start.

        Padding: none.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def cu_seq_lens(self) -> Device[Int32[Tensor, "chunk_reqs+1"]]:
        """Prefix sum of the states of each request.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def token_to_seq(self) -> Device[Int32[Tensor, "total_seq_lens"]]:
        """Chunk-local owner of each gathered state.

        Padding: none.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def total_seq_lens(self) -> int:
        """States that the chunk gathers, from host lengths; never more than the consumer's buffer holds.

        Padding: none.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def token_start(self) -> int:
        """First query token of the chunk, in the batch's numbering.

        Padding: none.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def token_end(self) -> int:
        """End of the chunk's query tokens, in the batch's numbering.

        Padding: none.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def num_reqs(self) -> int:
        """Requests of the chunk; the rows of ``block_table``.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def skip_kv_gather(self) -> bool:
        """Whether the gathered keys of the previous chunk are the same and must be reused.

        True only for a later slice of the same requests; a consumer that ignores it gathers over keys still in use.

        Padding: none.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def local_cu_seq_lens(self) -> Device[Int32[Tensor, "chunk_reqs+1"]] | None:
        """Prefix sum of this rank's states of each request; None without DCP.

        Padding: none.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def local_total_seq_lens(self) -> int:
        """States that this rank gathers; 0 without DCP.

        Padding: none.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def max_local_total_seq_lens(self) -> int:
        """Largest such total over the ranks, which is the width of the collective; 0 without DCP.

        Padding: shorter ranks are padded to it.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...


class IndexerPrefillMetadata(Protocol):
    """The prefill part: chunks that tile the prefill tokens in order."""

    @property
    def chunks(self) -> Sequence[IndexerChunk]:
        """Chunks in order of their tokens; disjoint, without gap save slices that have no state.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...


class IndexerDecodeMetadata(Protocol):
    """The decode part; native multi-token decode has a row for each request, the flattened form one for each token."""

    @property
    def block_table(self) -> Device[Int32[Tensor, "num_decode_rows max_blocks"]]:
        """Physical block ids of each decode row in the indexer's cache.

        Padding: padding rows hold the null block.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def seq_lens(self) -> Device[Int32[Tensor, "*decode_rows"]]:
        """Keys that each decode token may see, in states: 1-D when flattened, requests by tokens when native.

        Padding: exactly 0 on padding, never negative.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def decode_lens(self) -> Device[Int32[Tensor, "num_decode_rows"]]:
        """Query tokens of each decode row.

        Padding: 0 on padding rows.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def requires_padding(self) -> bool:
        """Whether rows have unequal lengths, so that queries must be packed into a padded shape.

        Padding: when False, tokens are rows times one length.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def schedule_metadata(self) -> Device[Shaped[Tensor, "..."]]:
        """The logits kernel's schedule.

        Padding: built for the padded batch.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def global_seq_lens(self) -> Device[Int32[Tensor, "*decode_rows"]] | None:
        """Lengths over all ranks, in tokens, taken before localisation; None without DCP.

        Padding: 0 on padding.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...


class IndexerMetadata(Protocol):
    """The indexer's record for one batch; its split agrees with the MLA metadata of the same layer."""

    @property
    def seq_lens(self) -> Device[Int32[Tensor, "num_reqs"]]:
        """Cached and new tokens of each request, on the device.

        Padding: 0 for a padding request.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def max_seq_len(self) -> int:
        """Longest sequence, in tokens; an upper bound.

        Padding: bounds padding requests too.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def slot_mapping(self) -> Device[Int64[Tensor, "num_padded_tokens"]]:
        """Physical slot of each token in the indexer's cache.

        Padding: -1 says that the token is not stored on this rank.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def num_decodes(self) -> int:
        """Leading requests on the decode path.

        Padding: a padding request counts as a decode.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def num_decode_tokens(self) -> int:
        """Query tokens of the decode requests.

        Padding: includes padding tokens.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def num_prefills(self) -> int:
        """Trailing requests on the prefill path.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def num_prefill_tokens(self) -> int:
        """Query tokens of the prefill requests; the sum with the decode tokens is the batch's.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def decode(self) -> IndexerDecodeMetadata | None:
        """The decode part; None exactly when there are no decodes.

        Padding: its rows cover padding requests.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...

    @property
    def prefill(self) -> IndexerPrefillMetadata | None:
        """The prefill part; None exactly when there are no prefills.

        Padding: none; padding requests are not prefills.
        Source: vLLM 0.33.0 v1/attention/backends/mla/indexer.py
        """
        ...
