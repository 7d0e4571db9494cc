"""Random legal batches and configurations from a seed, for bulk runs; ``strategies`` draws the same for Hypothesis.

A batch is legal when a runner makes it; ``Runner`` says how its rows are ordered, and how graph replay pads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import lcm
from typing import Any, NamedTuple

import numpy as np

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.plan import PlanConfig
from mla_contract.adapters.release import NEWEST
from mla_contract.testing.corpus import derived_block_table
from mla_contract.testing.lowering import LoweredKind, Setup, build

OLD_CONTEXT = "0.27"
"""The last release whose chunked context is parallel lists."""


class Runner(StrEnum):
    """Whose order and padding a drawn batch has; a test compares both with recorded batches of these runners.

    Source: vLLM 0.32.0 v1/attention/backends/utils.py, reorder_batch_to_split_decodes_and_prefills, and
        v1/worker/gpu_model_runner.py; v1/worker/gpu/model_runner.py, sort_batch_req_ids and prepare_inputs.
    """

    OLDER = "older"
    """Decode, short extend, long extend, fresh prompt; a padded batch repeats the last offset."""
    NEWER = "newer"
    """Rows with drafts, then those of the full decode length, then by length; padded alike, live requests flagged."""


class Row(NamedTuple):
    """One request: new tokens, cached tokens, and whether it still computes its prompt."""

    query: int
    context: int
    prefilling: bool = False


PADDING = Row(0, 0)


@dataclass(frozen=True, slots=True)
class Draw:
    """A legal batch and the builder's configuration.

    Attributes:
        shape: The batch.
        setup: The configuration.
        runner: Whose order and padding the batch has.
        max_num_seqs: Requests of a step at most.
    """

    shape: BatchShape
    setup: Setup
    runner: Runner
    max_num_seqs: int

    @property
    def live_flags(self) -> bool:
        """Whether padding requests have no flag."""
        return self.runner is Runner.NEWER

    def build(self) -> tuple[Any, Any]:
        """Return the common batch and its metadata."""
        return build(self.shape, self.setup, live_flags=self.live_flags)


class Chooser:
    """Draws numbers; the only part that Hypothesis replaces."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def number(self, low: int, high: int) -> int:
        """Return an int from ``low`` to ``high``, both included."""
        return int(self._rng.integers(low, high + 1))

    def one(self, options: Sequence[Any]) -> Any:
        """Return one of the options."""
        return options[int(self._rng.integers(0, len(options)))]


def draw_legal(chooser: Chooser, kind: LoweredKind | None = None, *, runner: Runner | None = None) -> Draw:
    """Return a legal batch of up to 14 requests, and a configuration under which it can be planned.

    Args:
        chooser: Where the numbers come from.
        kind: The record; drawn when it is None.
        runner: Whose order and padding the batch has; drawn when it is None.

    Sync: none.
    """
    kind = chooser.one(list(LoweredKind)) if kind is None else kind
    runner = chooser.one(list(Runner)) if runner is None else runner
    threshold = chooser.one([1, 1, 2, 4])
    uniform = threshold > 1 and chooser.one([False, True])
    shorts = chooser.one([True, True, False])
    rows = draw_rows(chooser, threshold, uniform=uniform, shorts_decode=shorts)
    if runner is Runner.NEWER:
        rows.sort(key=lambda row: (row.prefilling or row.query == 1, row.query != threshold, row.query))
    max_num_seqs = len(rows) + chooser.number(0, 6)
    rows, num_tokens = replay_padded(chooser, rows, max_num_seqs)
    setup = _setup(chooser, kind, rows, (threshold, uniform, shorts))
    return Draw(shape_of(rows, setup.config, num_tokens), setup, runner, max_num_seqs)


def replay_padded(chooser: Chooser, rows: Sequence[Row], max_num_seqs: int) -> tuple[list[Row], int | None]:
    """Return the rows of a batch as graph replay pads them, and its tokens; every other batch is left alone.

    A graph of decodes holds a number of equal queries. Any other is captured for a number of tokens, and has as many
    requests, but not more than a step may have: padding requests may then come without padding tokens.

    Source: vLLM 0.32.0 v1/cudagraph_dispatcher.py and v1/worker/gpu/cudagraph_utils.py.
    """
    live, lens = sum(row.query for row in rows), {row.query for row in rows}
    if chooser.one([False, True]):
        return list(rows), None
    if len(lens) == 1 and len(rows) < max_num_seqs and chooser.one([True, True, False]):
        more = chooser.number(1, max_num_seqs - len(rows))
        return [*rows, *[PADDING] * more], live + more * lens.pop()
    tokens = live + chooser.number(0, 9)
    return [*rows, *[PADDING] * (min(tokens, max_num_seqs) - len(rows))], tokens


def draw_rows(chooser: Chooser, threshold: int, *, uniform: bool = False, shorts_decode: bool = True) -> list[Row]:
    """Return the rows of a legal batch, in order; at least one.

    Args:
        chooser: Where the numbers come from.
        threshold: Longest query that is still a decode, in tokens.
        uniform: Whether all decodes have one length; half of such batches have nothing else.
        shorts_decode: Whether short pieces of a prompt may be decodes; where not, some rows are flagged.
    """
    longest = chooser.one([8, 60, 700])
    width = chooser.number(1, threshold)
    decodes = [
        Row(width if uniform else chooser.number(1, threshold), chooser.number(1, longest))
        for _ in range(chooser.number(0, 6))
    ]
    shorts = []
    if not shorts_decode:
        shorts = [
            Row(chooser.number(1, threshold), chooser.number(1, longest), True) for _ in range(chooser.number(0, 2))
        ]
    extends = [
        Row(threshold + chooser.number(1, 12), chooser.number(1, longest), True) for _ in range(chooser.number(0, 3))
    ]
    fresh = [Row(threshold + chooser.number(1, 40), 0, True) for _ in range(chooser.number(0, 3))]
    alone = uniform and chooser.one([False, True])
    return (decodes if alone else [*decodes, *shorts, *extends, *fresh]) or [Row(threshold, 5)]


def shape_of(rows: Sequence[Row], config: PlanConfig, num_tokens: int | None = None) -> BatchShape:
    """Return the planner's batch of the rows, with derived blocks; ``num_tokens`` where tokens are padded."""
    seq_lens = [row.query + row.context for row in rows]
    flags = None if config.treat_short_extends_as_decodes else [row.prefilling for row in rows]
    table = derived_block_table(seq_lens, config.block_size, config.parallel.size)
    return BatchShape.of(
        [row.query for row in rows], seq_lens, num_actual_tokens=num_tokens, is_prefilling=flags, block_table=table
    )


def _setup(chooser: Chooser, kind: LoweredKind, rows: Sequence[Row], split: tuple[int, bool, bool]) -> Setup:
    """Return a configuration under which the rows can be planned."""
    threshold, uniform, shorts = split
    block, size = chooser.one([1, 4, 16, 64]), chooser.one([1, 1, 1, 2, 4])
    ratio = chooser.one([1, 2]) if kind is LoweredKind.INDEXER and (size == 1 or block > 1) else 1
    runs = [run for run in (1, 2, block) if block % run == 0 and run % ratio == 0]
    sharing = ContextParallel(size, chooser.number(0, size - 1), chooser.one(runs)) if size > 1 else ContextParallel()
    aligned = lcm(block, sharing.span)
    old = kind is not LoweredKind.INDEXER and size == 1 and chooser.one([False, False, True])
    # Up to 0.27 each prefill with context needs an aligned piece of its own.
    pieces = chooser.number(len(rows) if old else 1, len(rows) + 8)
    longest = max(row.query + row.context for row in rows)
    decode_lens = {row.query for row in rows if 0 < row.query <= threshold}
    config = PlanConfig(
        block_size=block,
        decode_threshold=threshold,
        require_uniform=uniform,
        treat_short_extends_as_decodes=shorts,
        workspace_rows=None if kind is LoweredKind.INDEXER else aligned * pieces,
        indexer_states=max(longest, 1) * chooser.one([1, 2, 8]) if kind is LoweredKind.INDEXER else None,
        logits_bytes=chooser.one([4, 4_000, 400_000, 1 << 29]),
        topk_tokens=chooser.one([1, 8, 64]) if kind in (LoweredKind.SPARSE, LoweredKind.AITER) else None,
        flatten_decodes=kind is LoweredKind.INDEXER and (len(decode_lens) > 1 or chooser.one([False, True])),
        compress_ratio=ratio,
        parallel=sharing,
        release=OLD_CONTEXT if old else NEWEST,
    )
    all_decodes = kind in (LoweredKind.SPARSE, LoweredKind.AITER) and chooser.one([False, False, True])
    dense = not all_decodes and chooser.one([True, True, False])
    return Setup(kind=kind, config=config, dense_prefill=dense, all_decodes=all_decodes)
