"""The fast path of ``judge``: decides only whether all clauses hold, by proofs first, then by single clauses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from mla_contract.contract.clauses.clause import Clause, Level, Probe
from mla_contract.contract.clauses.judge import clauses_of
from mla_contract.contract.clauses.usual import PROVEN, PROVEN_IN_ORDER, Step, prove_structure
from mla_contract.contract.clauses.usual_context import (
    PROVEN_CONTEXT,
    PROVEN_CONTEXT_VALUES,
    prove_context,
    prove_context_values,
)
from mla_contract.contract.clauses.usual_values import PROVEN_VALUES, prove_values
from mla_contract.contract.schema.declaration import BackendDeclaration
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.facts import NO_FACTS, Facts
from mla_contract.contract.step.trace import NO_TRACE, BuildTrace


def _ids(first: int, end: int) -> tuple[str, ...]:
    """Return the ids from ``first`` up to ``end``."""
    return tuple(f"MLA{number}" for number in range(first, end))


_INDEXER = ("indexer_chunk", "chunk_values", "indexer_rows", "MLA341", "MLA342", "MLA343", "MLA344", *_ids(347, 351))
ONLY_WITH: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "trace": frozenset({"work", "work_buffers", "workspace", "slices", "MLA245", "MLA246", "MLA247", "MLA248"}),
        "prefill": frozenset(
            {"prefill", "context", "context_values", "chunk_records", "gather", "indexer_chunk", "chunk_values"}
        ),
        "decode": frozenset({"decode", "MLA343", "MLA344", *_ids(347, 351), "MLA352", "MLA353", "MLA384"}),
        "indexer": frozenset(_INDEXER),
        "mla": frozenset({"MLA241", "MLA242", "MLA245", "MLA249", "MLA251", "MLA252", "MLA301", *_ids(381, 384)}),
        "chunks": frozenset({"context_values", "chunk_records", *_ids(302, 312)}),
        "tables": frozenset({"MLA381", "MLA382", "MLA383"}),
    }
)
"""Families and clauses that do not apply without a part."""

NEEDS: Mapping[str, Callable[[Facts], object]] = MappingProxyType(
    {
        "MLA215": lambda facts: facts.dummy,
        "MLA216": lambda facts: facts.pcp_size > 1,
        "MLA222": lambda facts: facts.dcp_size > 1,
        "MLA226": lambda facts: facts.row_stride is not None and facts.wide_addresses is not None,
        "MLA254": lambda facts: facts.topk_rank is not None and facts.topk_shape is not None,
        "MLA303": lambda facts: facts.gather_by_page is not None,
        "MLA307": lambda facts: facts.dcp_size > 1,
        "MLA345": lambda facts: facts.buffer_rows is not None,
        "MLA346": lambda facts: facts.topk_rows is not None,
        "MLA310": lambda facts: facts.pinned_sources,
        "MLA311": lambda facts: facts.gather_kind is not None and facts.cache_dtype is not None,
    }
)
"""Clauses that hold, or do not apply, unless the facts are so."""

_plans: dict[tuple[int, Level, tuple[bool, ...]], tuple[Facts, tuple[Probe, ...]]] = {}
_MOST_PLANS = 256
_PROOFS = (PROVEN, PROVEN_IN_ORDER, PROVEN_CONTEXT, PROVEN_VALUES, PROVEN_CONTEXT_VALUES)
_NOTHING_PROVEN = (False,) * len(_PROOFS)


def all_hold(
    metadata: Any,
    batch: Any,
    level: Level,
    facts: Facts = NO_FACTS,
    declaration: BackendDeclaration | None = None,
    trace: BuildTrace = NO_TRACE,
) -> bool:
    """Return True only if no clause up to this level is broken; what raises is not caught here.

    Args:
        metadata: What a builder returned.
        batch: The batch that it was given, or None.
        level: ``STRUCTURAL``, or ``VALUES`` for both levels.
        facts: Numbers of the configuration.
        declaration: What the backend says of itself.
        trace: Records of what happened around the build.

    Sync: none in the structural level; reads device memory in the values level
    """
    prefill, indexer = getattr(metadata, "prefill", None), hasattr(metadata, "num_prefill_tokens")
    chunks = prefill is not None and getattr(prefill, "chunked_context", None) is not None
    proven = _NOTHING_PROVEN
    if batch is not None and not indexer:
        step = prove_structure(metadata, batch, facts, declaration, prefill)
        if step is not None:
            proven = _proven(step, metadata, batch, level, facts, prefill if chunks else None)
    parts = (
        trace is not NO_TRACE,
        prefill is not None,
        getattr(metadata, "decode", None) is not None,
        indexer,
        not indexer,
        chunks,
        hasattr(metadata, "paged_kv_indptr") or hasattr(metadata, "work_meta_data"),
        *proven,
    )
    probes = _remaining(facts, level, parts)
    if not probes:
        return True
    subject = StepContext(metadata=metadata, batch=batch, declaration=declaration, facts=facts, trace=trace)
    return all(not probe(subject) for probe in probes)


def structure_holds(subject: StepContext) -> bool:
    """Return True only if no structural clause is broken: the fast path of ``judge``.

    Sync: none
    """
    return _holds(subject, Level.STRUCTURAL)


def values_hold(subject: StepContext) -> bool:
    """Return True only if no clause of either level is broken.

    Sync: reads device memory
    """
    return _holds(subject, Level.VALUES)


def _holds(subject: StepContext, level: Level) -> bool:
    """Return ``all_hold`` of a subject, and False where it raises: the slow path decides clause by clause."""
    try:
        return all_hold(subject.metadata, subject.batch, level, subject.facts, subject.declaration, subject.trace)
    except Exception:  # noqa: BLE001 - the records are foreign
        return False


def _proven(
    step: Step, metadata: Any, batch: Any, level: Level, facts: Facts, chunked: Any
) -> tuple[bool, bool, bool, bool, bool]:
    """Return which of ``_PROOFS`` stand for a usual step; ``chunked`` is a prefill record with chunked context."""
    values = level is Level.VALUES and prove_values(step, metadata, batch, facts)
    if chunked is None:
        return True, step.in_order, False, values, False
    context = prove_context(step, facts, chunked)
    return True, step.in_order, context, values, context and values and prove_context_values(step, chunked)


def _remaining(facts: Facts, level: Level, parts: tuple[bool, ...]) -> tuple[Probe, ...]:
    """Return the checks that can apply and that no proof has covered; found once for each configuration."""
    key = (id(facts), level, parts)
    known = _plans.get(key)
    if known is None or known[0] is not facts:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        known = _plans[key] = (facts, tuple(one.probe for one in _wanted(facts, level, parts)))
    return known[1]


def _wanted(facts: Facts, level: Level, parts: tuple[bool, ...]) -> list[Clause]:
    """Return the clauses up to a level that can apply, less those that the proofs cover; structural ones first."""
    absent: set[str] = set()
    for needed, part in zip(ONLY_WITH.values(), parts, strict=False):
        absent |= set() if part else needed
    for covered, proven in zip(_PROOFS, parts[len(ONLY_WITH) :], strict=True):
        absent |= covered if proven else set()
    absent |= {code for code, wanted in NEEDS.items() if not wanted(facts)}
    levels = (Level.STRUCTURAL,) if level is Level.STRUCTURAL else (Level.STRUCTURAL, Level.VALUES)
    return [one for own in levels for one in clauses_of(own) if one.family not in absent and one.id not in absent]
