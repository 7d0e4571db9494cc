"""Batches as vLLM's own runners made them, recorded so that they serve where vLLM is not installed.

`python -m scripts.record_runner_batches` writes them; block tables and slots are not kept, but derived.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from mla_contract.adapters.context_parallel import ContextParallel


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerBatch:
    """One batch as a builder was handed it.

    Attributes:
        name: Runner, padding, drafts, and a number.
        release: The vLLM release whose runner made it.
        function: The function that made it, by its full name.
        runner: ``v1`` or ``v2``.
        padding: ``none``, ``full`` (a graph replays the whole step) or ``piecewise``; what is no step of requests is
            ``capture``, ``dummy``, ``mixed`` (a dummy of decodes beside a prompt) or ``draft`` (a drafter's step).
        drafts: Who drafts how many tokens: ``none``, ``mtp1`` to ``mtp3``, ``ngram3``.
        ordered_by: Longest query, in tokens, that the runner ordered as a decode.
        max_num_seqs: Requests of a step at most.
        parallel: The sharing of the cache.
        query_lens: [num_reqs] new tokens; 0 on padding requests.
        seq_lens: [num_reqs] cached and new tokens, as the device has them.
        seq_lens_cpu_upper_bound: [num_reqs] what the host knows of them.
        num_actual_tokens: Tokens, padding included where the whole step is padded.
        max_query_len: Longest query, in tokens, or a bound.
        max_seq_len: Longest sequence, in tokens, or a bound.
        is_prefilling: Whether a request still computes its prompt; shorter than the batch where padding has no flag.
        num_slots: Slots; more than ``num_actual_tokens`` where only they are padded.
        dcp_local_seq_lens: [num_reqs] tokens on this rank; None where the cache is not shared.
    """

    name: str
    release: str
    function: str
    runner: str
    padding: str
    drafts: str
    ordered_by: int
    max_num_seqs: int
    parallel: ContextParallel
    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    seq_lens_cpu_upper_bound: tuple[int, ...]
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    is_prefilling: tuple[bool, ...] | None
    num_slots: int
    dcp_local_seq_lens: tuple[int, ...] | None

    @property
    def is_step(self) -> bool:
        """Whether requests are behind it, which the runner ordered."""
        return self.padding in ("none", "full", "piecewise")

    @property
    def has_live_flags(self) -> bool:
        """Whether padding requests have no flag."""
        return self.is_prefilling is not None and len(self.is_prefilling) < len(self.query_lens)


@cache
def runner_batches() -> Mapping[str, RunnerBatch]:
    """Return every recorded batch, by name."""
    record = json.loads(files("mla_contract.testing").joinpath("runner_batches.json").read_text(encoding="utf-8"))
    return MappingProxyType({batch.name: batch for batch in read_batches(record)})


def read_batches(record: Mapping[str, Any]) -> tuple[RunnerBatch, ...]:
    """Return the batches of a record.

    Args:
        record: What ``scripts/record_runner_batches.py`` writes, as plain data.
    """
    common = {"release": record["release"], "max_num_seqs": record["max_num_seqs"]}
    return tuple(
        _read(row, index, function=record["functions"][row["runner"]], **common)
        for index, row in enumerate(record["batches"])
    )


def _read(row: Mapping[str, Any], index: int, **common: Any) -> RunnerBatch:
    flags, local = row["is_prefilling"], row.get("dcp_local_seq_lens")
    lens: dict[str, Any] = {
        "query_lens": tuple(row["query_lens"]),
        "seq_lens": tuple(row["seq_lens"]),
        "seq_lens_cpu_upper_bound": tuple(row.get("seq_lens_cpu_upper_bound", row["seq_lens"])),
        "dcp_local_seq_lens": None if local is None else tuple(local),
        "is_prefilling": None if flags is None else tuple(map(bool, flags)),
    }
    names = ("runner", "padding", "drafts", "ordered_by", "num_actual_tokens", "max_query_len", "max_seq_len")
    kept = {name: row[name] for name in (*names, "num_slots")}
    name = f"{row['runner']}_{row['padding']}_{row['drafts']}_{index}"
    return RunnerBatch(name=name, parallel=ContextParallel(*row["dcp"]), **kept, **lens, **common)


@cache
def batch_of_each_kind() -> tuple[RunnerBatch, ...]:
    """Return a batch for each runner, padding, order by the shortest or longest decodes, and what is padded.

    Longest queries between are left out: the others show what there is to see; and decodes that are longer than the
    engine's order knows: a builder under test verifies its engine's drafts.
    """
    found: dict[tuple[Any, ...], RunnerBatch] = {}
    orders = {batch.ordered_by for batch in runner_batches().values()}
    for batch in runner_batches().values():
        kind = (
            batch.runner,
            batch.padding,
            batch.ordered_by,
            0 in batch.query_lens,
            batch.num_actual_tokens > sum(batch.query_lens),
            batch.has_live_flags,
            len(set(batch.query_lens) - {0}) > 1,
        )
        verifies = batch.ordered_by > 1 or batch.drafts == "none"
        if verifies and batch.ordered_by in (min(orders), max(orders)):
            found.setdefault(kind, batch)
    return tuple(found.values())
