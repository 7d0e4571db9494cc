"""A sparse model through the real engine, and how its tokens compare with transformers'."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mla_contract.backends.choice import BACKEND_VARIABLE, DEFAULT_BACKEND, INDEX_CACHE_VARIABLE
from mla_contract.backends.kernels.registry import ENVIRONMENT, known_providers
from mla_contract.errors import InvalidContract
from mla_contract.runtime.settings import LEVEL_VARIABLE, MODE_VARIABLE
from mla_contract.testing.engine.models import VOCABULARY
from mla_contract.testing.engine.processes import EngineRun, RunFailed, ask_oracle, run_engine, write_model
from mla_contract.testing.engine.question import Answer, Question
from mla_contract.testing.engine.traffic import prompts_of, traffic_from

MODELS: Mapping[str, str] = MappingProxyType({"deepseek-v3.2": "write_sparse_model", "glm-moe-dsa": "write_glm_model"})
"""Recipe of each model, by the name of its family."""

DOUBLE = "aiter-double"
DOUBLE_STANDS_FOR = "0.1.20:gfx950"
"""Release and GPU: the newest of which every kernel of the path is charted."""

TRAFFIC: Mapping[str, Any] = MappingProxyType(
    {
        "prompt_lens": (200, 15, 90, 250, 180),
        "arrivals": (0, 0, 4, 7, 9),
        "max_tokens": 24,
        "block_size": 64,
        "num_blocks": 13,
        "prefix_caching": True,
        "shared_prefix": 130,
        "logprobs": 5,
    }
)
"""Prompts longer than a step and than the selection, so few blocks that one request must wait, and a known prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoke:
    """One smoke run.

    Attributes:
        backend: A known backend, or ``module:Class``.
        model: Family of the model.
        provider: Kernel provider; empty takes the first that can run.
        index_cache: How the indexer's cache stores keys; ``float`` is compared exactly.
    """

    backend: str = DEFAULT_BACKEND.name
    model: str = "deepseek-v3.2"
    provider: str = ""
    index_cache: str = "float"

    @property
    def doubled(self) -> bool:
        """Whether aiter's double runs: it knows quantised keys and bfloat16 only."""
        return self.provider == DOUBLE

    @property
    def index_fp8(self) -> bool:
        """Whether keys are quantised."""
        return self.doubled or self.index_cache == "fp8"

    @property
    def traffic(self) -> dict[str, Any]:
        """Fields of the traffic."""
        narrow = {"max_tokens": 16} if self.index_fp8 else {}
        return dict(TRAFFIC) | narrow | ({"kv_cache_dtype": "bfloat16"} if self.doubled else {})

    @property
    def variables(self) -> dict[str, str]:
        """Environment of the engine: every build is checked, values included."""
        named = {ENVIRONMENT: self.provider} if self.provider and not self.doubled else {}
        return named | {
            BACKEND_VARIABLE: self.backend,
            INDEX_CACHE_VARIABLE: "fp8" if self.index_fp8 else "float",
            MODE_VARIABLE: "error",
            LEVEL_VARIABLE: "values",
        }

    def questions(self) -> list[Question]:
        """Return what transformers is asked: its own continuation, and the control in which nothing is left out."""
        return [self.question(), replace(self.question(), dense=True)]

    def question(self, given: Sequence[Sequence[int]] | None = None) -> Question:
        """Return what transformers is asked.

        Args:
            given: The engine's tokens: then it tells what it would have said at each of their places.
        """
        traffic = traffic_from(self.traffic)
        return Question(
            prompts=prompts_of(traffic, VOCABULARY),
            max_tokens=traffic.max_tokens,
            given=given,
            index_fp8=self.index_fp8,
            attention_bf16=self.doubled,
        )


@dataclass(frozen=True, slots=True)
class SmokeFinding:
    """One line of the result.

    Attributes:
        name: What was looked at.
        text: What was found.
        holds: Whether it is as it must be; None where nothing must be.
    """

    name: str
    text: str
    holds: bool | None = None


@dataclass(frozen=True, slots=True)
class SmokeReport:
    """The result of a smoke run.

    Attributes:
        findings: What was found, line by line.
        message: How the run ended, if it did not finish.
    """

    findings: tuple[SmokeFinding, ...] = field(default=())
    message: str = ""

    @property
    def passed(self) -> bool:
        """Whether everything is as it must be."""
        return not self.message and all(one.holds is not False for one in self.findings)


def provider_words() -> tuple[str, ...]:
    """Return what can be named as a provider: those that are registered, and aiter's double."""
    return (*known_providers(), DOUBLE)


def run_smoke(smoke: Smoke, say: Callable[[str], None] = lambda text: None) -> SmokeReport:
    """Write a model, run it through the engine, ask transformers, and compare.

    Args:
        smoke: What to run.
        say: Told what is being done.

    Raises:
        RunFailed: A process left no result, or the engine cannot have what was asked for.
    """
    with tempfile.TemporaryDirectory() as parent:
        model = Path(parent) / "model"
        say("writing a tiny random model, and asking transformers")
        free, dense = write_model(MODELS[smoke.model], model, smoke.questions(), calm=smoke.index_fp8)
        say("running it through the engine")
        run = run_engine(model, smoke.traffic, smoke.variables, DOUBLE_STANDS_FOR if smoke.doubled else "")
        if run.outcome["error"] == InvalidContract.__name__:
            raise RunFailed(run.outcome["message"])
        if run.outcome["error"]:
            return SmokeReport(message=f"{run.outcome['error']}: {run.outcome['message']}")
        found = token_findings(run, free, dense)
        if run.outcome["tokens"] != free.tokens:
            say("asking transformers place by place")
            (forced,) = ask_oracle(model, [smoke.question(run.outcome["tokens"])])
            found.append(forced_finding(run, forced))
    return SmokeReport((*traffic_findings(run), *found, *check_findings(run)))


def traffic_findings(run: EngineRun) -> list[SmokeFinding]:
    """Return what the scheduler met: each kind of step must have come up, else the run shows little."""
    done = run.outcome["scheduling"]
    names = {
        "mixed_steps": "steps with decodes and prompts",
        "chunked_requests": "prompts computed in chunks",
        "preemptions": "preemptions",
        "cached_tokens": "prompt tokens found in the prefix cache",
    }
    text = ", ".join(f"{done.get(name, 0)} {meaning}" for name, meaning in names.items())
    return [SmokeFinding("traffic", f"{done.get('steps', 0)} steps; {text}", all(done.get(name) for name in names))]


def token_findings(run: EngineRun, free: Answer, dense: Answer) -> list[SmokeFinding]:
    """Return how the tokens compare with the model's, and with those of the model when nothing is left out."""
    tokens = run.outcome["tokens"]
    total = sum(map(len, tokens))
    same, control = equal_tokens(tokens, free.tokens), equal_tokens(tokens, dense.tokens)
    return [
        SmokeFinding("greedy tokens as transformers", f"{same} of {total}", same == total),
        SmokeFinding("control: as a dense model, must differ", f"{control} of {total}", control < total),
        SmokeFinding("largest difference of a log probability", f"{largest_difference(run, free):.1e}"),
    ]


def forced_finding(run: EngineRun, forced: Answer) -> SmokeFinding:
    """Return how many tokens are those that the model would have said after the same tokens."""
    tokens = run.outcome["tokens"]
    return SmokeFinding(
        "of these, as transformers after the same tokens",
        f"{equal_tokens(tokens, forced.tokens)} of {sum(map(len, tokens))}, log probabilities differ by up to "
        f"{largest_difference(run, forced):.1e}",
    )


def check_findings(run: EngineRun) -> list[SmokeFinding]:
    """Return how many builds were checked; attention's and indexer's record must be among them, none broken."""
    checked = run.outcome["checked"]
    kinds = {kind for kind, *_ in checked}
    text = ", ".join(f"{builds} {name} ({broken} broken)" for _, name, builds, broken in checked)
    holds = kinds >= {"sparse", "indexer"} and not any(broken for *_, broken in checked)
    found = [SmokeFinding("metadata, every clause, every step", text or "nothing was checked", holds)]
    if run.outcome["calls"]:
        calls = ", ".join(f"{name} {count}" for name, count in sorted(run.outcome["calls"].items()))
        found.append(SmokeFinding("calls of the double", calls))
    return found


def equal_tokens(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> int:
    """Return how many tokens are equal, place by place."""
    return sum(a == b for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True))


def largest_difference(run: EngineRun, answer: Answer) -> float:
    """Return the largest difference between log probabilities of a token that both name, where tokens before agree."""
    largest = 0.0
    for index, ours in enumerate(run.outcome["logprobs"]):
        theirs = answer.logprobs[index]
        for place, best in enumerate(ours):
            largest = max([largest, *(abs(value - theirs[place].get(token, value)) for token, value in best.items())])
            if run.outcome["tokens"][index][place] != answer.tokens[index][place]:
                break
    return largest
