"""One configuration of a sparse backend: what the builder, the kernels' callers and the workspace plan all read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import torch

from mla_contract.adapters.capacity import Capacity
from mla_contract.adapters.fault import SettingFault, int_faults, type_faults, validate_settings
from mla_contract.adapters.indexer_chunks import LOGIT_BYTES
from mla_contract.adapters.plan import PlanConfig
from mla_contract.adapters.release import NEWEST
from mla_contract.contract.schema.provider import IndexerCacheFormat
from mla_contract.contract.step.facts import Facts

_LEAST = {
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_model_len": 1,
    "max_capture_size": 0,
    "block_size": 1,
    "topk_tokens": 1,
    "next_n": 1,
    "compress_ratio": 1,
    "num_heads": 1,
    "width": 1,
    "value_width": 1,
    "index_heads": 1,
    "logits_bytes": LOGIT_BYTES,
    "context_tokens": 0,
    "max_split_per_batch": -1,
}
"""The least value of each setting that is an int."""


@dataclass(frozen=True, kw_only=True)
class SparseConfig:
    """What does not change between steps.

    Attributes:
        max_num_seqs: Requests of a step.
        max_num_batched_tokens: Query tokens of a step.
        max_model_len: Longest sequence, in tokens.
        max_capture_size: Tokens of the largest captured graph; 0 without graphs.
        block_size: Tokens of a cache block, as the kernel counts blocks.
        topk_tokens: Positions that the indexer selects for each token.
        next_n: Longest query that is a decode, in tokens.
        compress_ratio: Tokens of a state of the cache; these backends know caches of one alone.
        num_heads: Query heads of this rank.
        width: Elements of a cached row: latent and rope part.
        value_width: Elements of its latent part.
        softmax_scale: Scale of the scores.
        q_dtype: Element type of the queries that the attention kernel gets.
        kv_dtype: Element type of the cache that it gets.
        out_dtype: Element type of its output.
        index_heads: Heads of the indexer.
        index_format: How the indexer's cache stores keys.
        indexer_rows: Rows of the buffer that the indexer gathers keys into.
        logits_bytes: Budget of the indexer's logits of a prefill chunk.
        native_decode: Whether uniform multi-token decodes keep a row for each request; else a row is a token.
        dense_prefill: Whether short prefills may attend densely, outside this backend's attention.
        context_rows: Rows of the dense prefill's context workspace; needed with ``dense_prefill``.
        context_tokens: Cached tokens of all requests together, at most.
        persistent: Whether work of the attention kernel is planned ahead.
        max_split_per_batch: Budget of splits of that work; -1 for no bound.
        with_lse: Whether the attention kernel is asked for the LSE.
        release: The vLLM release whose planning is wanted; for one that is not known, that of the nearest.

    Raises:
        InvalidConfig: With every setting that these backends cannot run with.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_capture_size: int = 0
    block_size: int = 64
    topk_tokens: int = 2048
    next_n: int = 1
    compress_ratio: int = 1
    num_heads: int = 16
    width: int = 576
    value_width: int = 512
    softmax_scale: float = 576**-0.5
    q_dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype = torch.bfloat16
    out_dtype: torch.dtype = torch.bfloat16
    index_heads: int = 64
    index_format: IndexerCacheFormat = field(
        default_factory=lambda: IndexerCacheFormat(head_dim=128, fp8_dtype=torch.float8_e4m3fn)
    )
    indexer_rows: int | None = None
    logits_bytes: int = 512 << 20
    native_decode: bool = False
    dense_prefill: bool = False
    context_rows: int | None = None
    context_tokens: int = 0
    persistent: bool = False
    max_split_per_batch: int = -1
    with_lse: bool = False
    release: str | None = NEWEST

    def __post_init__(self) -> None:
        faults = int_faults(self, _LEAST, {"indexer_rows": 1, "context_rows": 1})
        faults += type_faults(self, dict.fromkeys(("q_dtype", "kv_dtype", "out_dtype"), torch.dtype))
        faults += type_faults(self, {"index_format": IndexerCacheFormat, "release": (str, type(None))})
        validate_settings(faults)
        validate_settings(self._contradictions())
        # The planner checks its own settings, such as the workspace against the blocks: at start-up, not in a step.
        _ = self.flat_plan, self.capacity

    def _contradictions(self) -> list[SettingFault]:
        """Return the settings that do not go with others."""
        length, tokens, dense = self.max_model_len, self.max_num_batched_tokens, self.dense_prefill
        rules = (
            ("value_width", f"at most width={self.width}", self.value_width <= self.width),
            ("softmax_scale", "a positive number", 0 < self.softmax_scale < inf),
            ("indexer_rows", f"rows of one request of max_model_len={length}", self.gather_rows >= length),
            ("compress_ratio", "1: these backends read a key for each token", self.compress_ratio == 1),
            ("next_n", f"at most max_num_batched_tokens={tokens}", self.next_n <= tokens),
            ("context_rows", "rows of a workspace, with dense_prefill", not dense or self.context_rows is not None),
            ("context_tokens", "at least 1, with dense_prefill", not dense or self.context_tokens > 0),
            ("max_split_per_batch", "at least 1, or -1 for no bound", self.max_split_per_batch != 0),
        )
        return [
            SettingFault(f"SparseConfig.{name}", expected, getattr(self, name))
            for name, expected, holds in rules
            if not holds
        ]

    @property
    def gather_rows(self) -> int:
        """Rows over which prefill chunks are planned; by default one request of the longest length."""
        return self.max_model_len if self.indexer_rows is None else self.indexer_rows

    @cached_property
    def token_rows(self) -> int:
        """Rows of every buffer with a row for each token."""
        return max(self.max_num_batched_tokens, self.max_capture_size)

    @cached_property
    def decode_rows(self) -> int:
        """Rows of the decode part, at most: all requests at full length, or the largest captured graph."""
        return max(min(self.max_num_seqs * self.next_n, self.max_num_batched_tokens), self.max_capture_size)

    @cached_property
    def device_lens_may_differ(self) -> bool:
        """Whether sequences may be shorter than the host knows: only where drafts are rejected."""
        return self.next_n > 1

    @cached_property
    def flat_plan(self) -> PlanConfig:
        """What the planner is told when a decode row is a token."""
        return PlanConfig(
            block_size=self.block_size,
            decode_threshold=self.next_n,
            workspace_rows=self.context_rows if self.dense_prefill else None,
            indexer_states=self.gather_rows,
            logits_bytes=self.logits_bytes,
            topk_tokens=self.topk_tokens,
            flatten_decodes=True,
            release=self.release,
        )

    @cached_property
    def attention_plan(self) -> PlanConfig:
        """What the planner is told when nobody reads the indexer's parts."""
        return replace(self.flat_plan, indexer_states=None, plan_decodes=False)

    @cached_property
    def native_plan(self) -> PlanConfig:
        """What the planner is told when a decode row is a request."""
        return replace(self.flat_plan, flatten_decodes=False)

    @cached_property
    def capacity(self) -> Capacity:
        """The largest batch, for the persistent buffers."""
        return Capacity(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_capture_size=self.max_capture_size,
            next_n=self.next_n,
            max_context_tokens=self.context_tokens,
            workspace_rows=self.context_rows if self.dense_prefill else None,
        )

    @cached_property
    def facts(self) -> Facts:
        """What the clauses may know of the configuration."""
        return Facts(
            kernel_block_size=self.block_size,
            decode_threshold=self.next_n,
            uniform_decodes=False,
            short_extends_are_decodes=True,
            max_num_seqs=self.max_num_seqs,
            max_capture_size=self.max_capture_size,
            next_n=self.next_n,
            buffer_rows=self.capacity_rows,
            context_rows=self.context_rows if self.dense_prefill else None,
            gather_by_page=True if self.dense_prefill else None,
            indexer_rows=self.gather_rows,
            logits_budget_bytes=self.logits_bytes,
        )

    @property
    def capacity_rows(self) -> int:
        """Rows of the persistent decode buffers."""
        return max(max(self.max_num_seqs, self.max_capture_size) * self.next_n, self.token_rows)
