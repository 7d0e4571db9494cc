"""The conformance suite without a test runner: what any builder must do on every batch of the corpus.

``pytest --mla-backend module:factory`` and ``mla-contract check`` run these checks; a factory returns a fresh target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import lcm
from types import MappingProxyType
from typing import Any, Protocol

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.fault import InvalidBatch
from mla_contract.adapters.plan import BatchPlan, PlanConfig, plan_batch
from mla_contract.adapters.release import NEWEST
from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.schema.declaration import BackendDeclaration
from mla_contract.contract.step.facts import Facts
from mla_contract.contract.step.trace import BuildTrace, addresses_of
from mla_contract.contract.violation import Violation
from mla_contract.runtime import MetadataReport, report_metadata
from mla_contract.testing.corpus import BatchSpec, conformance_batches, derived_block_table, in_order
from mla_contract.testing.lowering import common_batch
from mla_contract.testing.plan_equality import compare_with_plan
from mla_contract.testing.snapshots import compare_snapshots, snapshot

DEFAULT_BLOCK = 16
"""Tokens of a block where the target does not say; a run that a rank stores must still lie in one block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """What a builder claims beyond its declaration.

    Attributes:
        persistent: Array fields of the record that a captured graph reads: equal batches get equal addresses.
        protocol: The Protocol of the record; None takes the one that it looks like.
        release: The vLLM release whose plan is wanted.
    """

    persistent: tuple[str, ...] = ()
    protocol: type | None = None
    release: str | None = NEWEST


class ExpectationsLike(Protocol):
    """What ``Expectations`` has; packages that do not depend on this one declare their own."""

    @property
    def persistent(self) -> tuple[str, ...]:
        """Array fields that a captured graph reads."""
        ...

    @property
    def protocol(self) -> type | None:
        """The Protocol of the record, or None."""
        ...

    @property
    def release(self) -> str | None:
        """The vLLM release whose plan is wanted."""
        ...


class ConformanceTarget(Protocol):
    """A builder under test, with all that is constant about it."""

    @property
    def declaration(self) -> BackendDeclaration:
        """What the backend says of itself."""
        ...

    @property
    def facts(self) -> Facts:
        """Numbers of the configuration; ``kernel_block_size`` and ``decode_threshold`` choose the batches' form."""
        ...

    @property
    def expectations(self) -> ExpectationsLike:
        """What the builder claims besides."""
        ...

    def build(self, batch: Any) -> Any:
        """Return the metadata of one step.

        Args:
            batch: A ``CommonBatch`` on the host.
        """
        ...


Factory = Callable[[], ConformanceTarget]


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """One batch as a target gets it, and its shared plan."""

    batch: Any
    plan: BatchPlan


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check of one batch found.

    Attributes:
        violations: Every breach.
        skipped: Why the check did not run; None when it did.
        report: Clauses that held and that were not decided; None where the check runs no clause.
    """

    violations: tuple[Violation, ...] = ()
    skipped: str | None = None
    report: MetadataReport | None = field(default=None, compare=False)


def plan_config(target: ConformanceTarget) -> PlanConfig:
    """Return the planner's configuration of a target, from its facts."""
    facts = target.facts
    shorts = facts.short_extends_are_decodes
    return PlanConfig(
        block_size=facts.kernel_block_size or lcm(DEFAULT_BLOCK, facts.dcp_interleave),
        decode_threshold=facts.decode_threshold or 1,
        require_uniform=bool(facts.uniform_decodes),
        treat_short_extends_as_decodes=True if shorts is None else shorts,
        workspace_rows=facts.context_rows,
        indexer_states=facts.indexer_rows,
        logits_bytes=facts.logits_budget_bytes or 512 << 20,
        flatten_decodes=True,
        compress_ratio=facts.compress_ratio,
        parallel=ContextParallel(facts.dcp_size, facts.dcp_rank, facts.dcp_interleave),
        release=target.expectations.release,
    )


def prepare(spec: BatchSpec, target: ConformanceTarget) -> PreparedStep | str:
    """Return the batch in the target's form, in the order that an engine gives it, or why it cannot be planned."""
    config = plan_config(target)
    planned = _planned(spec, config)
    return planned if isinstance(planned, str) else PreparedStep(common_batch(*planned, config.parallel), planned[1])


@cache
def _planned(spec: BatchSpec, config: PlanConfig) -> tuple[BatchShape, BatchPlan] | str:
    """Return a batch and its plan; both are read-only, and are made once."""
    ordered = in_order(spec, config.decode_threshold)
    if config.treat_short_extends_as_decodes:
        ordered = replace(ordered, is_prefilling=None)
    shape = ordered.shape(derived_block_table(ordered.seq_lens, config.block_size, config.parallel.size))
    try:
        return shape, plan_batch(shape, config)
    except InvalidBatch as error:
        return f"cannot be planned: {str(error).splitlines()[0]}"


def run_check(name: str, factory: Factory, spec: BatchSpec) -> Verdict:
    """Run one check; whatever the builder raises is a finding.

    Args:
        name: A name of ``CHECKS``.
        factory: Makes the target anew.
        spec: The batch.
    """
    try:
        return CHECKS[name](factory, spec)
    except Exception as error:  # noqa: BLE001 - the builder is foreign; what it raises is reported, not passed on
        text = f"{type(error).__name__}: {error}"
        return Verdict((Violation("MLA111", f"build({spec.name})", "the builder raises", "metadata", text),))


def check_clauses(factory: Factory, spec: BatchSpec) -> Verdict:
    """Check that every clause of both levels holds for a first step."""
    target = factory()
    step = prepare(spec, target)
    if isinstance(step, str):
        return Verdict(skipped=step)
    return _judged(target, step, target.build(step.batch))


def check_plan(factory: Factory, spec: BatchSpec) -> Verdict:
    """Check that the record equals the shared plan, where the contract says that it does."""
    target = factory()
    step = prepare(spec, target)
    if isinstance(step, str):
        return Verdict(skipped=step)
    return Verdict(compare_with_plan(target.build(step.batch), step.plan, target.declaration, target.facts))


def check_leak(factory: Factory, spec: BatchSpec) -> Verdict:
    """Check long steps, this step, the long steps again: each must be as if the others had not been."""
    target = factory()
    step = prepare(spec, target)
    if isinstance(step, str):
        return Verdict(skipped=step)
    longs = _long_steps(target)
    first = [snapshot(target.build(long.batch)) for long in longs]
    short = target.build(step.batch)
    verdict = _judged(target, step, short)
    found = [*verdict.violations, *compare_snapshots(snapshot(factory().build(step.batch)), snapshot(short), short)]
    for long, wanted in zip(longs, first, strict=True):
        again = target.build(long.batch)
        found += compare_snapshots(wanted, snapshot(again), again)
    return Verdict(tuple(dict.fromkeys(found)), report=verdict.report)


def check_addresses(factory: Factory, spec: BatchSpec) -> Verdict:
    """Check that persistent arrays have the same addresses when the batch comes again."""
    target = factory()
    step = prepare(spec, target)
    if isinstance(step, str):
        return Verdict(skipped=step)
    if not target.expectations.persistent:
        return Verdict(skipped="the target names no persistent field")
    captured = addresses_of(target.build(step.batch), target.expectations.persistent)
    kept = [target.build(long.batch) for long in _long_steps(target)]
    kept.append(target.build(step.batch))
    report = report_metadata(kept[-1], target.expectations.protocol, trace=BuildTrace(captured=captured))
    return Verdict(tuple(violation for violation in report.violations if violation.code == "MLA247"))


CHECKS: Mapping[str, Callable[[Factory, BatchSpec], Verdict]] = MappingProxyType(
    {"clauses": check_clauses, "plan": check_plan, "leak": check_leak, "addresses": check_addresses}
)
"""Every check of the suite, by name."""


def _judged(target: ConformanceTarget, step: PreparedStep, metadata: Any) -> Verdict:
    report = report_metadata(
        metadata,
        target.expectations.protocol,
        batch=step.batch,
        declaration=target.declaration,
        facts=target.facts,
        level=Level.VALUES,
    )
    return Verdict(report.violations, report=report)


def _long_steps(target: ConformanceTarget) -> list[PreparedStep]:
    """Return the batch with the most tokens and the one with the most decode requests, of those that can be planned."""
    found = []
    for size in (_num_tokens, _num_decodes):
        for spec in sorted(conformance_batches().values(), key=size, reverse=True):
            step = prepare(spec, target)
            if not isinstance(step, str):
                found.append(step)
                break
    return found


def _num_tokens(spec: BatchSpec) -> int:
    return sum(spec.query_lens)


def _num_decodes(spec: BatchSpec) -> int:
    return spec.query_lens.count(1)
