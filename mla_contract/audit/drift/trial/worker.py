"""The process that runs two functions on one input after the other, under limits of time and memory."""

from __future__ import annotations

import bisect
import builtins
import importlib
import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mla_contract.audit.drift.trial import cases
from mla_contract.audit.drift.trial.tensor import HostTensor, HostTorch, UnsupportedError
from mla_contract.audit.drift.trial.words import BUILTINS

_MEMORY_BYTES = 16 * 2**30
_CPU_GRACE_SECONDS = 4


class Batch:
    """A builder's input batch with the host facts of one case, every field that any release had."""

    def __init__(self, tensor: Callable[[Any], Any], case: cases.Case) -> None:
        queries, context = _ints(case["q"]), _ints(case["context"])
        seq_lens = [q + c for q, c in zip(queries, context, strict=True)]
        self.query_start_loc = self.query_start_loc_cpu = tensor(_prefix_sum(queries))
        self.seq_lens = self.seq_lens_cpu = self._seq_lens_cpu = self.seq_lens_cpu_upper_bound = tensor(seq_lens)
        self.num_computed_tokens_cpu = self._num_computed_tokens_cpu = tensor(context)
        self.num_reqs, self.num_actual_tokens = len(queries), sum(queries)
        self.max_query_len, self.max_seq_len = max(queries), max(seq_lens)
        self.is_prefilling = tensor([bool(flag) for flag in _ints(case["is_prefilling"])])
        self.causal = True

    def naive_query_lens(self) -> Any:
        """Return the query lengths."""
        return self.query_start_loc[1:] - self.query_start_loc[:-1]


class InputBatch:
    """The engine's request table, which a reordering swaps."""

    def __init__(self, case: cases.Case) -> None:
        queries, context = _ints(case["q"]), _ints(case["context"])
        self.req_ids = [f"r{i}" for i in range(len(queries))]
        self.num_computed_tokens_cpu = np.array(context, dtype=np.int32)
        self.num_prompt_tokens = np.array([1 if i % 2 else 4 for i in range(len(queries))], dtype=np.int32)
        self.num_scheduled_tokens = dict(zip(self.req_ids, queries, strict=True))

    def swap_states(self, left: int, right: int) -> None:
        """Swap two requests."""
        self.req_ids[left], self.req_ids[right] = self.req_ids[right], self.req_ids[left]


def main() -> None:
    """Read a trial from standard input; write its outcome to standard output."""
    trial = json.load(sys.stdin)
    _limit(math.ceil(trial["seconds"]) + _CPU_GRACE_SECONDS)
    try:
        outcome = _run(trial, HostTorch(), HostTensor)
    except UnsupportedError as error:
        try:
            outcome = _run(trial, *torch_tensors())
        except ImportError:
            outcome = {"reason": f"{error} is known to torch only, which is not installed"}
    json.dump(outcome, sys.stdout)


def torch_tensors() -> tuple[Any, Callable[[Any], Any]]:
    """Return torch and what makes a tensor of a list.

    Raises:
        ImportError: torch is not installed.
    """
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    return torch, lambda items: torch.tensor(items, dtype=_dtype(torch, items))


def _run(trial: dict[str, Any], torch: Any, tensor: Callable[[Any], Any]) -> dict[str, Any]:
    sides = [define(side["source"], side["name"], torch) for side in trial["sides"]]
    deadline = time.monotonic() + trial["seconds"]
    count = 0
    reads, unbound = frozenset(trial["reads"]), frozenset(trial["unbound"])
    for case in cases.cases(trial["roles"], trial["defaults"], reads, unbound):
        if time.monotonic() > deadline:
            break
        count += 1
        results = [
            call(function, side["parameters"], case, tensor)
            for function, side in zip(sides, trial["sides"], strict=True)
        ]
        if results[0] != results[1]:
            return {"case": case, "results": results}
    return {"cases": count}


def define(source: str, name: str, torch: Any) -> Callable[..., Any]:
    """Return a function from its extracted source, which sees nothing but harmless builtins and array modules."""
    allowed = {word: getattr(builtins, word) for word in BUILTINS}
    scope = {"__builtins__": allowed, "torch": torch, "np": np, "numpy": np, "math": math, "bisect": bisect}
    exec(compile(source, "<extracted>", "exec"), scope)
    function: Callable[..., Any] = scope[name]
    return function


def call(
    function: Callable[..., Any], parameters: list[list[str]], case: cases.Case, tensor: Callable[[Any], Any]
) -> Any:
    """Return what a function gives for a case as JSON data; what it raises, too."""
    table = InputBatch(case)
    arguments = {}
    for name, role, kind in parameters:
        if not role.startswith("default:"):
            arguments[name] = _argument(role, kind, case, table, tensor)
    try:
        result = function(**arguments)
    except Exception as error:  # noqa: BLE001  an exception is a result like any other
        return {"raises": type(error).__name__}
    shown = _shown(result)
    return [shown, table.req_ids] if any(role == cases.INPUT_BATCH for _, role, _ in parameters) else shown


def _argument(role: str, kind: str, case: cases.Case, table: InputBatch, tensor: Callable[[Any], Any]) -> Any:
    if role == cases.BATCH:
        return Batch(tensor, case)
    if role in (cases.INPUT_BATCH, cases.SCHEDULER_OUTPUT):
        return table
    if role not in (cases.QUERY_LENS, cases.KV_LENS):
        return case[role]
    lens = _ints(case["q"])
    if role == cases.KV_LENS:
        lens = [q + c for q, c in zip(lens, _ints(case["context"]), strict=True)]
    return lens if kind == "list" else np.array(lens, dtype=np.int32) if kind == "ndarray" else tensor(lens)


def _shown(value: Any) -> Any:
    """Return a result as JSON data; a slice as its two ends."""
    if isinstance(value, slice):
        return [_shown(value.start), _shown(value.stop)]
    if isinstance(value, dict):
        return {str(key): _shown(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_shown(item) for item in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if isinstance(value, int | float | str | None) else repr(type(value))


def _prefix_sum(lens: list[int]) -> list[int]:
    return [sum(lens[:i]) for i in range(len(lens) + 1)]


def _ints(value: Any) -> list[int]:
    return list(value)


def _dtype(torch: Any, items: list[Any]) -> Any:
    return torch.bool if items and isinstance(items[0], bool) else torch.int32


def _limit(cpu_seconds: int) -> None:
    try:
        resource = importlib.import_module("resource")
    except ImportError:
        return
    for what, limit in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_AS, _MEMORY_BYTES),
    ):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (limit if hard < 0 else min(limit, hard), hard))


if __name__ == "__main__":
    main()
