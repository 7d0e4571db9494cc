"""Mixed traffic through a real engine: requests that arrive while others decode, with prompts cut into chunks.

``python -m mla_contract.testing.engine.traffic MODEL SETTINGS`` prints one JSON line: tokens, steps, seconds; SETTINGS
is a JSON object such as ``{"max_tokens": 8}``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mla_contract.testing.engine.scheduling import watch_scheduling

_MARK = "__mla_contract_keeps__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is sent, and into what kind of engine.

    Attributes:
        prompt_lens: Tokens of each prompt.
        arrivals: Step at which each request arrives.
        max_tokens: New tokens of each request.
        token_budget: Most tokens of a step; below the longest prompt it cuts prompts into chunks.
        block_size: Tokens of a cache block.
        num_blocks: Blocks of the cache; few of them force preemption.
        prefix_caching: Whether blocks of equal prefixes are shared.
        shared_prefix: Leading tokens of the last prompt that are those of the first.
        kv_cache_dtype: Element type of the attention's cache, in vLLM's words.
        num_workers: Ranks over which heads are spread; each is a process when there are several.
        drafts: Draft tokens of a decode, taken from the prompt's own n-grams; none when 0.
        logprobs: How many log probabilities of each step come back.
        repeats: How often the traffic is sent, for timing.
        seed: Seed of the prompts.
    """

    prompt_lens: tuple[int, ...] = (200, 15, 90, 333)
    arrivals: tuple[int, ...] = (0, 0, 4, 7)
    max_tokens: int = 24
    token_budget: int = 64
    block_size: int = 16
    num_blocks: int = 256
    prefix_caching: bool = False
    shared_prefix: int = 0
    kv_cache_dtype: str = "auto"
    num_workers: int = 1
    drafts: int = 0
    logprobs: int = 0
    repeats: int = 1
    seed: int = 0


@dataclass(slots=True)
class TrafficOutcome:
    """What came back.

    Attributes:
        tokens: New tokens of each request of the last repeat.
        logprobs: For each request and new token the best log probabilities, by token.
        scheduling: What the scheduler did in the last repeat; empty when it runs in another process.
        steps: Engine steps of each repeat.
        seconds: Seconds of each repeat.
        error: Type of the exception that ended the run, or an empty text.
        message: Its text.
    """

    tokens: list[list[int]] = field(default_factory=list)
    logprobs: list[list[dict[int, float]]] = field(default_factory=list)
    scheduling: dict[str, int] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    error: str = ""
    message: str = ""


def keep_as_asked(traffic: Traffic) -> None:
    """Make the CPU platform keep chunked prefill, token budget, prefix caching, block size and cache type as asked.

    Without matrix instructions it switches them off for MLA; the shared layer itself runs them well. Our own platform
    keeps them, except a cache of another type than the model: sparse models take ``bfloat16`` for the model's type.
    Source: vLLM 0.32.0 platforms/cpu.py, model_executor/models/config.py
    """
    from vllm.platforms import current_platform

    platform: Any = type(current_platform)
    before = platform.check_and_update_config
    if getattr(before, _MARK, False):
        return

    def check_and_update_config(cls: Any, /, vllm_config: Any) -> None:
        before(vllm_config)
        vllm_config.cache_config.cache_dtype = traffic.kv_cache_dtype
        if hasattr(platform, "takes_sparse_mla"):
            return
        vllm_config.scheduler_config.enable_chunked_prefill = True
        vllm_config.scheduler_config.max_num_batched_tokens = traffic.token_budget
        vllm_config.cache_config.enable_prefix_caching = traffic.prefix_caching
        vllm_config.cache_config.block_size = traffic.block_size

    setattr(check_and_update_config, _MARK, True)
    platform.check_and_update_config = classmethod(check_and_update_config)


def prompts_of(traffic: Traffic, vocabulary: int) -> list[list[int]]:
    """Return random prompts, equal for equal seeds."""
    import numpy as np

    draw = np.random.default_rng(traffic.seed)
    prompts: list[list[int]] = [draw.integers(3, vocabulary, size).tolist() for size in traffic.prompt_lens]
    prompts[-1][: traffic.shared_prefix] = prompts[0][: traffic.shared_prefix]
    return prompts


def start_engine(model: str, traffic: Traffic) -> Any:
    """Return an engine in this process; rope runs natively, because the CPU kernel is wrong for MLA's shape."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0" if traffic.num_workers == 1 else "1")
    from vllm import LLM

    keep_as_asked(traffic)
    llm = LLM(
        model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=8,
        max_num_batched_tokens=traffic.token_budget,
        enable_chunked_prefill=True,
        enable_prefix_caching=traffic.prefix_caching,
        block_size=traffic.block_size,
        kv_cache_dtype=traffic.kv_cache_dtype,
        tensor_parallel_size=traffic.num_workers,
        kv_cache_memory_bytes=1 << 30,
        num_gpu_blocks_override=traffic.num_blocks,
        compilation_config={"custom_ops": ["all", "-rotary_embedding"]},
        disable_log_stats=True,
        speculative_config=_drafting(traffic),
        **_plain_mla(),
    )
    return llm.llm_engine


def _drafting(traffic: Traffic) -> dict[str, Any] | None:
    """Return the argument that asks for drafts, or None."""
    if not traffic.drafts:
        return None
    return {"method": "ngram", "num_speculative_tokens": traffic.drafts, "prompt_lookup_max": 2, "prompt_lookup_min": 1}


def _plain_mla() -> dict[str, str]:
    """Return the argument that asks for vLLM's reference MLA where nobody brings a platform of his own.

    On processors with AMX vLLM prefers kernels that take bfloat16 alone; the runs compare tokens in float32.

    Source: vLLM 0.32.0 platforms/cpu.py, get_attn_backend_cls
    """
    from vllm.platforms import current_platform

    return {} if hasattr(type(current_platform), "takes_sparse_mla") else {"attention_backend": "CPU_MLA"}


def send(
    engine: Any, traffic: Traffic, name: str = "0", outcome: TrafficOutcome | None = None
) -> tuple[list[list[int]], int]:
    """Send the traffic once, and return the new tokens of each request and the number of steps.

    Args:
        engine: The engine.
        traffic: What is sent.
        name: Begins the requests' names; each call needs its own.
        outcome: Gets the tokens and log probabilities.
    """
    from vllm import SamplingParams

    outcome = outcome or TrafficOutcome()

    params = SamplingParams(
        temperature=0.0,
        max_tokens=traffic.max_tokens,
        ignore_eos=True,
        detokenize=False,
        logprobs=traffic.logprobs or None,
    )
    prompts = prompts_of(traffic, engine.model_config.get_vocab_size())
    waiting = sorted(range(len(prompts)), key=lambda index: traffic.arrivals[index])
    outcome.tokens, outcome.logprobs = [[] for _ in prompts], [[] for _ in prompts]
    step = 0
    while waiting or engine.has_unfinished_requests():
        while waiting and traffic.arrivals[waiting[0]] <= step:
            index = waiting.pop(0)
            engine.add_request(f"{name}-{index}", {"prompt_token_ids": prompts[index]}, params)
        for output in engine.step():
            if output.finished:
                index = int(output.request_id.split("-")[1])
                outcome.tokens[index] = list(output.outputs[0].token_ids)
                outcome.logprobs[index] = [
                    {token: entry.logprob for token, entry in place.items()}
                    for place in output.outputs[0].logprobs or ()
                ]
        step += 1
    return outcome.tokens, step


def run_traffic(model: str, traffic: Traffic) -> TrafficOutcome:
    """Start an engine, send the traffic, and return what came back; an exception ends the run and is recorded."""
    outcome = TrafficOutcome()
    try:
        engine = start_engine(model, traffic)
        for repeat in range(traffic.repeats):
            scheduling = watch_scheduling(engine)
            begin = time.perf_counter()
            _, steps = send(engine, traffic, str(repeat), outcome)
            outcome.scheduling = scheduling.counts()
            outcome.seconds.append(time.perf_counter() - begin)
            outcome.steps.append(steps)
    except Exception as error:  # noqa: BLE001 - how a run dies is what the caller wants to know
        outcome.error, outcome.message = type(error).__name__, str(error)
    return outcome


def traffic_from(options: Mapping[str, Any]) -> Traffic:
    """Return traffic from JSON options."""
    converted: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }
    return Traffic(**converted)


if __name__ == "__main__":
    wanted = traffic_from(json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
    print("OUTCOME " + json.dumps(asdict(run_traffic(sys.argv[1], wanted))), flush=True)
