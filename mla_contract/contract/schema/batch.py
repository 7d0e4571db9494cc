"""The common batch: what every metadata builder receives, one object for each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from jaxtyping import Bool, Int32, Int64
    from torch import Tensor

    from mla_contract.contract.schema.residence import Device, Host


class CommonBatch(Protocol):
    """The step's requests and tokens, decodes first, as the engine hands them to every builder."""

    @property
    def query_start_loc(self) -> Device[Int32[Tensor, "num_reqs+1"]]:
        """Prefix sum of the query lengths, in tokens, on the device; starts at 0, ends at ``num_actual_tokens``.

        Padding: a padding request repeats the last offset, or adds the uniform length of a padded decode batch.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...

    @property
    def query_start_loc_cpu(self) -> Host[Int32[Tensor, "num_reqs+1"]]:
        """Host copy of ``query_start_loc``; only the total is binding where a backend declares that they may differ.

        Padding: as the device copy.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...

    @property
    def seq_lens(self) -> Device[Int32[Tensor, "num_reqs"]]:
        """Cached and new tokens of each request, on the device.

        Padding: 0 for a padding request.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...

    @property
    def num_reqs(self) -> int:
        """Requests in the batch.

        Padding: includes padding requests.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...

    @property
    def num_actual_tokens(self) -> int:
        """Query tokens in the batch.

        Padding: may include padding tokens, despite its name.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...

    @property
    def max_query_len(self) -> int:
        """Longest query, in tokens; an upper bound.

        Padding: bounds padding requests too.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...

    @property
    def max_seq_len(self) -> int:
        """Longest sequence, in tokens; an upper bound.

        Padding: while a graph is captured, the longest that the model allows.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...

    @property
    def block_table_tensor(self) -> Device[Int32[Tensor, "num_reqs max_blocks"]]:
        """Physical block ids of each request, in order of position.

        Padding: padding rows hold the null block.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...

    @property
    def slot_mapping(self) -> Device[Int64[Tensor, "num_padded_tokens"]]:
        """Physical cache slot of each token: ``block id * block size + offset``.

        Padding: -1 says that the token is not stored on this rank.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...

    @property
    def causal(self) -> bool | Device[Bool[Tensor, "num_reqs"]]:
        """Whether a token sees only positions up to its own; a tensor decides for each request.

        Padding: undefined for padding requests.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...

    @property
    def dcp_local_seq_lens(self) -> Device[Int32[Tensor, "num_reqs"]] | None:
        """Tokens of each request that this rank stores; None without decode context parallelism.

        Padding: 0 for a padding request.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...

    @property
    def positions(self) -> Device[Int64[Tensor, "num_padded_tokens"]] | None:
        """Request-local position of each token; None when the caller has none at hand.

        Padding: undefined for padding tokens.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...

    @property
    def is_prefilling(self) -> Bool[Tensor, "num_flags"] | None:
        """Whether a request still computes its prompt: tells a short extension from a decode.

        Padding: False for a padding request, or no flag at all: one runner flags live requests only.
        Source: vLLM 0.33.0 v1/attention/backend.py; 0.32.0 v1/worker/gpu/model_runner.py
        """
        ...

    @property
    def seq_lens_cpu_upper_bound(self) -> Host[Int32[Tensor, "num_reqs"]] | None:
        """Host upper bound of ``seq_lens``; exact on prefill requests, optimistic under asynchronous speculation.

        Padding: 0 for a padding request.
        Source: vLLM 0.33.0 v1/attention/backend.py
        """
        ...
