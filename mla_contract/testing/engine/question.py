"""What a model is asked, and what it answers; no array library is needed to say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One run of the model.

    Attributes:
        prompts: Tokens of each prompt.
        max_tokens: New tokens for each.
        given: New tokens of each request from elsewhere: the model then says what it would have said at each place.
        dense: Whether every position is selected: the control that sparsity matters.
        index_fp8: Whether queries and keys of the indexer are rounded as a quantised cache rounds them.
        attention_bf16: Whether attention runs in latent space on bfloat16 values, as kernels on GPUs do.
    """

    prompts: Sequence[Sequence[int]]
    max_tokens: int
    given: Sequence[Sequence[int]] | None = None
    dense: bool = False
    index_fp8: bool = False
    attention_bf16: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said.

    Attributes:
        tokens: The best token at each place, of each request.
        logprobs: The best log probabilities at each place, by token.
    """

    tokens: list[list[int]]
    logprobs: list[list[dict[int, float]]]
