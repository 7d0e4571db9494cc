"""Hypothesis strategies for batches and rules, small enough that every invariant is checked by hand."""

from __future__ import annotations

from hypothesis import strategies as st

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.context_rule import ContextRule


@st.composite
def sharings(draw: st.DrawFn) -> ContextParallel:
    """Draw a sharing of the cache, often none."""
    size = draw(st.sampled_from([1, 1, 2, 3, 4, 8]))
    return ContextParallel(size, draw(st.integers(0, size - 1)), draw(st.sampled_from([1, 2, 16])))


@st.composite
def context_rules(draw: st.DrawFn, release: str = "0.33") -> ContextRule:
    """Draw a workspace of at least one aligned piece, not always a multiple of it."""
    sharing, block = draw(sharings()), draw(st.sampled_from([1, 16, 48]))
    alignment = ContextRule(10**9, block, sharing).alignment
    rows = alignment * draw(st.integers(1, 8)) + draw(st.integers(0, alignment - 1))
    return ContextRule(rows, block, sharing, release)


context_lens = st.lists(st.one_of(st.just(0), st.integers(0, 40), st.integers(0, 600)), min_size=1, max_size=7)


@st.composite
def ordered_batches(draw: st.DrawFn, threshold: int = 2) -> BatchShape:
    """Draw a legal batch: decodes, long extends, fresh prefills, then padding requests and padding tokens."""
    decodes = draw(st.lists(st.tuples(st.integers(1, threshold), st.integers(1, 90)), max_size=5))
    extends = draw(st.lists(st.tuples(st.integers(threshold + 1, 12), st.integers(1, 90)), max_size=4))
    fresh = draw(st.lists(st.tuples(st.integers(threshold + 1, 12), st.just(0)), max_size=4))
    padding = [(0, 0)] * draw(st.integers(0, 3))
    rows = [*decodes, *extends, *fresh, *padding]
    query_lens = [query for query, _ in rows]
    return BatchShape.of(
        query_lens,
        [query + context for query, context in rows],
        num_actual_tokens=sum(query_lens) + (draw(st.integers(0, 3)) if rows else 0),
    )
