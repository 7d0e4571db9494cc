"""The corpus: batches of vLLM's own tests and runners, and what its tests assert, so that every backend meets them.

Only numbers are kept, and the names of the tests and functions that they come from. Block tables and slots are derived,
never random.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import numpy as np

from mla_contract.adapters.arrays import Int32Array
from mla_contract.adapters.batch import BatchShape
from mla_contract.testing.runner_batches import RunnerBatch, batch_of_each_kind

NULL_BLOCK = 0
"""The block that no request owns; block tables of padding requests hold it."""

SECTIONS = (
    "batches",
    "splits",
    "derived_splits",
    "orders",
    "contexts",
    "indexer_chunks",
    "prefill_chunks",
    "slices",
    "ubatches",
    "local_lens",
    "decodes",
)
"""Tables of the corpus, by the thing that they are about."""


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """One named batch.

    Attributes:
        name: Its name in vLLM's tests, or ours.
        query_lens: New tokens of each request.
        seq_lens: Cached and new tokens of each request.
        group: What the batch was made for.
        sources: The test files, or the function of a runner, that it comes from.
        block_size: Tokens of a cache block, where the test fixes it.
        topk_tokens: Keys that a token reads, where the test fixes it.
        workspace_rows: Rows of the context workspace, where the test fixes it.
        num_padded_reqs: Requests after padding, where the test pads; the padding requests are not in the lengths.
        is_prefilling: Whether each request still computes its prompt, where it is known; padding may have none.
        num_actual_tokens: Tokens, where padding raises them above the sum of the queries.
        ordered_by: Longest query, in tokens, that a runner ordered as a decode; None where none has ordered the rows.
    """

    name: str
    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    group: str
    sources: tuple[str, ...]
    block_size: int | None = None
    topk_tokens: int | None = None
    workspace_rows: int | None = None
    num_padded_reqs: int | None = None
    is_prefilling: tuple[bool, ...] | None = None
    num_actual_tokens: int | None = None
    ordered_by: int | None = None

    def padded(self) -> BatchSpec:
        """Return the batch as a graph of decodes replays it: requests without tokens behind, and tokens for them."""
        missing = (self.num_padded_reqs or 0) - len(self.query_lens)
        if missing <= 0:
            return self
        longest = max(self.query_lens)
        tail = (0,) * missing
        flags = None if self.is_prefilling is None else (*self.is_prefilling, *(False,) * missing)
        return replace(
            self,
            name=f"{self.name}_padded",
            query_lens=(*self.query_lens, *tail),
            seq_lens=(*self.seq_lens, *tail),
            num_padded_reqs=None,
            is_prefilling=flags,
            num_actual_tokens=longest * (len(self.query_lens) + missing),
        )

    def shape(self, block_table: Int32Array | None = None) -> BatchShape:
        """Return the planner's view of the batch."""
        return BatchShape.of(
            self.query_lens,
            self.seq_lens,
            num_actual_tokens=self.num_actual_tokens,
            is_prefilling=self.is_prefilling,
            block_table=block_table,
        )


def in_order(spec: BatchSpec, threshold: int) -> BatchSpec:
    """Return the batch with its rows as an engine orders them: decode, short and long extend, fresh prompt, padding.

    A batch that a runner has ordered by this threshold is left alone. A row with context counts as prefilling where the
    test does not say otherwise and it is longer than the threshold; so it does where a runner had another threshold.

    Args:
        spec: The batch.
        threshold: Longest query that is still a decode, in tokens.
    """
    if spec.ordered_by == threshold:
        return spec

    def order(row: int) -> int:
        query, total = spec.query_lens[row], spec.seq_lens[row]
        if query == 0 or query == total:
            return 4 if query == 0 else 3
        return 2 if query > threshold else int(flags[row])

    def is_prompt(query: int, total: int) -> bool:
        return query > 0 and (query == total or query > threshold)

    stated = spec.is_prefilling if spec.ordered_by is None else None
    flags = stated or tuple(map(is_prompt, spec.query_lens, spec.seq_lens))
    rows = sorted(range(len(flags)), key=order)
    return replace(
        spec,
        query_lens=tuple(spec.query_lens[row] for row in rows),
        seq_lens=tuple(spec.seq_lens[row] for row in rows),
        is_prefilling=tuple(flags[row] for row in rows),
    )


def derived_block_table(seq_lens: Any, block_size: int, dcp_size: int = 1, longest: int = 0) -> Int32Array:
    """Return a block table in which requests own disjoint runs of blocks, and no live request the null block.

    Request r owns the blocks from ``r * max_blocks + 1`` on; columns behind its length are live blocks of its own too,
    as an engine leaves them; a padding request has the null block in every column.

    Args:
        seq_lens: [num_reqs] ints, tokens.
        block_size: Tokens of a block.
        dcp_size: Ranks that share the cache; a column covers ``block_size * dcp_size`` tokens.
        longest: Tokens that a row can hold at least, as an engine's table has columns for more than a step needs.

    Returns:
        [num_reqs, max_blocks] int32.

    Sync: none.
    """
    lens = np.asarray(seq_lens, dtype=np.int64)
    columns = max(-(-int(lens.max(initial=longest)) // (block_size * dcp_size)), 1)
    table = np.arange(len(lens) * columns, dtype=np.int32).reshape(len(lens), columns) + 1
    table[lens == 0] = NULL_BLOCK
    return table


@cache
def corpus() -> Mapping[str, Any]:
    """Return every table as plain data, by section."""
    text = files("mla_contract.testing").joinpath("corpus.json").read_text(encoding="utf-8")
    return MappingProxyType(json.loads(text))


def corpus_section(name: str) -> Any:
    """Return one table of the corpus: a dict by name, or a list.

    Raises:
        KeyError: There is no such table; the message lists them.
    """
    if name not in SECTIONS:
        raise KeyError(f"{name}: no table of the corpus; there are {', '.join(SECTIONS)}")
    return corpus()[name]


@cache
def batch_specs() -> Mapping[str, BatchSpec]:
    """Return every batch whose lengths vLLM's tests give, in their order, by name."""
    return MappingProxyType(
        {name: _spec(name, row) for name, row in corpus_section("batches").items() if row["seq_lens"] is not None}
    )


def _spec(name: str, row: Mapping[str, Any]) -> BatchSpec:
    optional: dict[str, Any] = {
        key: row[key] for key in ("block_size", "topk_tokens", "workspace_rows", "num_padded_reqs") if key in row
    }
    lens: dict[str, Any] = {key: tuple(row[key]) for key in ("query_lens", "seq_lens")}
    return BatchSpec(name=name, group=row["group"], sources=tuple(row["sources"]), **lens, **optional)


_OURS = "mla-contract"
EXTRA: tuple[BatchSpec, ...] = (
    BatchSpec("empty_prompt_boundary", (1, 1), (1, 2), "first decode steps", (_OURS,)),
    BatchSpec("block_edges", (1, 1, 1, 1), (16, 17, 32, 33), "lengths at block edges", (_OURS,)),
    BatchSpec("mtp_padded", (4, 4), (64, 40), "multi-token decode in a padded graph", (_OURS,), num_padded_reqs=4),
    BatchSpec("decode_and_fresh", (1, 1, 40), (90, 33, 40), "decodes beside a fresh prompt", (_OURS,)),
    BatchSpec("extend_and_fresh", (1, 24, 8), (70, 200, 8), "decode, long extend, fresh prompt", (_OURS,)),
    BatchSpec("context_without_block", (20, 20), (21, 23), "contexts shorter than a block", (_OURS,)),
)
"""Batches that the tests of vLLM do not have: edges that public incidents name."""


@cache
def conformance_batches() -> Mapping[str, BatchSpec]:
    """Return the batches of the conformance suite, by name: the corpus in padded form, ours, and vLLM's runners'."""
    every = [*batch_specs().values(), *EXTRA, *map(spec_of, batch_of_each_kind())]
    return MappingProxyType({spec.padded().name: spec.padded() for spec in every})


def spec_of(batch: RunnerBatch) -> BatchSpec:
    """Return a recorded batch as the suite's: the host knows what the device knows, and maxima are no bounds.

    Whether an engine drafts or captures, which is when they are, is not asked of a builder under test.

    Args:
        batch: What a runner made.
    """
    return BatchSpec(
        name=batch.name,
        query_lens=batch.query_lens,
        seq_lens=batch.seq_lens,
        group="runners",
        sources=(f"{batch.function} of {batch.release}",),
        is_prefilling=batch.is_prefilling,
        num_actual_tokens=batch.num_actual_tokens,
        ordered_by=batch.ordered_by,
    )
