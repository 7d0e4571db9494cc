"""Requests of one step as a scheduler may hand them to a runner: any state, any order; the runner orders them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.runners.configuration import Setting

PLACEHOLDER = 7
"""The token of every prompt and every draft: no metadata depends on it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a step.

    Attributes:
        prompt: Tokens of its prompt.
        computed: Tokens computed so far.
        new: Tokens of this step, drafts among them.
        drafts: Draft tokens of this step.
        rejected: Drafts of the step before that the device rejected and the host does not know of yet.
        resumed: Whether it computes tokens again that it had generated before a preemption.
    """

    prompt: int
    computed: int
    new: int
    drafts: int = 0
    rejected: int = 0
    resumed: bool = False

    @property
    def known(self) -> int:
        """Tokens whose values the runner has before this step, without drafts."""
        return max(self.prompt, self.computed + self.new - self.drafts)


def draw_step(rng: np.random.Generator, setting: Setting, *, decodes_only: bool = False) -> list[Request]:
    """Return the requests of a step within the setting's limits.

    Args:
        rng: The source of randomness.
        setting: The engine.
        decodes_only: Whether every request decodes.
    """
    count = int(rng.integers(1, setting.max_num_seqs // 2 + 2))
    kinds = ["decode"] if decodes_only else ["decode", "decode", "decode", "chunk", "last", "fresh", "short", "resumed"]
    longest = int(rng.choice([8, 40, 200]))
    same = rng.random() < 0.5
    budget, step = setting.max_num_batched_tokens, list[Request]()
    for _ in range(count):
        request = _draw(rng, setting, str(rng.choice(kinds)), longest, same)
        if request.new <= budget:
            budget -= request.new
            step.append(request)
    return step


def _draw(rng: np.random.Generator, setting: Setting, kind: str, longest: int, same: bool) -> Request:
    """Return one request of a kind."""
    context = int(rng.integers(1, longest + 1))
    most = setting.drafts
    if kind == "decode":
        full = same or setting.method == "mtp"
        drafts = most if full and rng.random() < 0.9 else int(rng.integers(0, most + 1))
        rejected = int(rng.integers(0, min(most, context - 1) + 1)) if most and rng.random() < 0.3 else 0
        prompt = int(rng.integers(1, context - rejected + 1))
        return Request(prompt, context, 1 + drafts, drafts, rejected)
    new = int(rng.integers(1, min(longest, 60) + 1))
    if kind == "short":
        new = int(rng.integers(1, most + 2))
    if kind == "fresh":
        return Request(new + int(rng.choice([0, 0, 13])), 0, new)
    if kind == "last":
        return Request(context + new, context, new)
    if kind == "resumed":
        computed = int(rng.choice([0, context]))
        return Request(max(1, (computed + new) // 2), computed, new, resumed=True)
    return Request(context + new + int(rng.integers(1, 50)), context, new)
