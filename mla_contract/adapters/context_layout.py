"""Where packed context chunks are cut, and where each chunk's part of the flat arrays lies."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_contract.adapters.arrays import Int32Array, sealed
from mla_contract.adapters.context_parallel import ContextParallel, local_lens_of_ranks
from mla_contract.adapters.context_rule import ContextRule


class Cut(NamedTuple):
    """One chunk's prefills, where the first one's slice begins and where the last one's stops."""

    first: int
    end: int
    begin: int
    stop: int


def cut_contexts(sizes: list[int], empty: list[int], filled: list[int], rule: ContextRule) -> list[Cut]:
    """Return the chunks' bounds; one step for each chunk and each prefill without context.

    Args:
        sizes: Cached tokens of each prefill.
        empty: Prefills without context, in order; no chunk spans one.
        filled: Prefix sum of ``local_rows``, one longer than ``sizes``.
        rule: Workspace, alignment and sharing.

    Sync: none.
    Source: vLLM 0.32.0 model_executor/layers/attention/mla_attention.py, plan_mla_context_chunks.
    """
    span, interleave, budget = rule.parallel.span, rule.parallel.interleave, rule.workspace_rows // rule.parallel.size
    gaps = [*empty, len(sizes)]
    cuts: list[Cut] = []
    gap = request = start = 0
    while request < len(sizes):
        gap = bisect_left(gaps, request, gap)
        if gaps[gap] == request:
            request += 1
            continue
        # Rows gathered before this chunk, those of a context that was cut included: the budget counts from here.
        done = filled[request] + -(-start // span) * interleave
        limit = done + budget
        end = bisect_right(filled, limit, request, gaps[gap] + 1) - 1
        first, begin = request, start
        request, start = end, (start if end == request else 0)
        if end == gaps[gap]:
            cuts.append(Cut(first, end, begin, sizes[end - 1]))
            continue
        # The workspace holds an aligned piece, so a chunk that begins with the cut context always gets one: each turn
        # of the loop advances.
        piece = _aligned_piece(sizes[end] - start, limit - max(filled[end], done), rule)
        start += piece
        cuts.append(Cut(first, end + 1, begin, start) if piece else Cut(first, end, begin, sizes[end - 1]))
    return cuts


def _aligned_piece(remaining: int, free_rows: int, rule: ContextRule) -> int:
    """Return the longest aligned piece, in tokens, of a context that does not fit; 0 if there is no room."""
    # A part of a round of dealing lies on some ranks only, so room is counted in whole rounds. One token at least must
    # remain: a context that is gathered to its end would not have been cut.
    room = free_rows // rule.parallel.interleave * rule.parallel.span if rule.parallel.size > 1 else free_rows
    return min(rule.workspace_rows, remaining - 1, room) // rule.alignment * rule.alignment


def local_rows(lens: NDArray[Any], parallel: ContextParallel) -> NDArray[Any]:
    """Return the rows that each rank gathers for lengths that begin at 0: whole interleaves, the same on every rank.

    Args:
        lens: Any shape, ints, tokens.
        parallel: The sharing; without it, rows are tokens.

    Sync: none.
    Source: vLLM 0.32.0 model_executor/layers/attention/mla_attention.py, build_mla_chunked_context_metadata.
    """
    if parallel.size == 1:
        return lens
    rounds: NDArray[Any] = -(-lens // parallel.span) * parallel.interleave
    return rounds


class Layout:
    """The chunks one after the other; a cell is one prefill in one chunk, and a chunk has one edge more than cells.

    Attributes:
        cuts: The chunks.
        parts: Each chunk's cells and its edges.
        num_edges: Edges in all.
    """

    def __init__(self, cuts: list[Cut]) -> None:
        self.cuts = cuts
        self.parts: list[tuple[slice, slice]] = []
        cell = edge = 0
        for first, end, _, _ in cuts:
            num_cells = end - first
            self.parts.append((slice(cell, cell + num_cells), slice(edge, edge + num_cells + 1)))
            cell += num_cells
            edge += num_cells + 1
        self.num_edges = edge

    def by_cell(self, values: Int32Array) -> Int32Array:
        """Return the prefills' values for each cell: [cells] int32."""
        return np.concatenate([values[first:end] for first, end, _, _ in self.cuts])

    def sums(self, values: Int32Array) -> Int32Array:
        """Return each chunk's prefix sum of the cells' values: [cells + chunks] int32, chunk after chunk."""
        flat = np.zeros(self.num_edges, dtype=np.int32)
        for part, edges in self.parts:
            np.add.accumulate(values[part], out=flat[edges.start + 1 : edges.stop])
        return sealed(flat)

    def offsets(self, start_loc: Int32Array, offsets: list[int]) -> Int32Array:
        """Return each chunk's prefix sum of query lengths: [cells + chunks] int32; ``offsets`` lists ``start_loc``."""
        flat = np.empty(self.num_edges, dtype=np.int32)
        for (first, end, _, _), (_, edges) in zip(self.cuts, self.parts, strict=True):
            np.subtract(start_loc[first : end + 1], offsets[first], out=flat[edges])
        return sealed(flat)


class Cells(NamedTuple):
    """The flat arrays that every plan has."""

    starts: Int32Array
    seq_lens: Int32Array
    cu_seq_lens: Int32Array
    query_start_loc: Int32Array


class LocalCells(NamedTuple):
    """The flat arrays that exist under sharing only; ``of_ranks`` is by prefill, the others are by cell or edge."""

    starts: Int32Array
    seq_lens: Int32Array
    cu_seq_lens: Int32Array
    of_ranks: Int32Array

    @classmethod
    def of(
        cls, lens: Int32Array, bounds: tuple[Int32Array, Int32Array], layout: Layout, parallel: ContextParallel
    ) -> LocalCells:
        """Return the rows that each rank gathers for slices that begin and stop at ``bounds``."""
        starts = sealed(local_rows(bounds[0], parallel))
        seq_lens = sealed(local_rows(bounds[1], parallel) - starts)
        return cls(starts, seq_lens, layout.sums(seq_lens), sealed(local_lens_of_ranks(lens, parallel)))

    def views(self, part: slice, edges: slice, requests: slice) -> tuple[Int32Array, ...]:
        """Return one chunk's views."""
        return self.starts[part], self.seq_lens[part], self.cu_seq_lens[edges], self.of_ranks[requests]
