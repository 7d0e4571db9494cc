"""The conformance suite without a test runner: what any builder must do on every batch of the corpus.

``pytest --mla-backend module:factory`` and ``mla-contract check`` run these checks; a factory returns a fresh target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import lcm
from types import MappingProxyType
from typing import Any

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.fault import InvalidBatch
from mla_contract.adapters.plan import BatchPlan, PlanConfig, plan_batch
from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.clauses.reads import check_device_reads
from mla_contract.contract.schema.indexer import IndexerMetadata
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.trace import BuildTrace, addresses_of
from mla_contract.contract.step.views import subjects_of
from mla_contract.contract.violation import Violation
from mla_contract.runtime import MetadataReport, report_metadata
from mla_contract.runtime.check import protocol_of
from mla_contract.testing.corpus import BatchSpec, conformance_batches, derived_block_table, in_order
from mla_contract.testing.device_reads import DeviceMemory, is_wait, on_device, watched_call
from mla_contract.testing.lowering import common_batch
from mla_contract.testing.plan_equality import compare_with_plan
from mla_contract.testing.slicing import halves
from mla_contract.testing.snapshots import compare_snapshots, snapshot
from mla_contract.testing.target import ConformanceTarget, Factory, TracingTarget, made_by

DEFAULT_BLOCK = 16
"""Tokens of a block where the target does not say; a run that a rank stores must still lie in one block."""


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """One batch as a target gets it, and its shared plan."""

    name: str
    batch: Any
    plan: BatchPlan


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check of one batch found.

    Attributes:
        violations: Every breach.
        skipped: Why the check did not run; None when it did.
        builds: For each build that clauses judged, what the clauses said of its records.
        decided: Clauses that the check itself decides, by comparing builds.
        error: What the builder raised, with its traceback.
    """

    violations: tuple[Violation, ...] = ()
    skipped: str | None = None
    builds: tuple[MetadataReport, ...] = field(default=(), compare=False)
    decided: tuple[str, ...] = ()
    error: Exception | None = field(default=None, compare=False)


class BuilderRaised(Exception):
    """A builder raised; its own error is the cause."""


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
    if isinstance(planned, str):
        return planned
    flags = spec.is_prefilling
    live_flags = flags is not None and len(flags) < len(spec.query_lens)
    batch = common_batch(*planned, config.parallel, live_flags=live_flags)
    return PreparedStep(spec.name, on_device(batch, getattr(target, "device", "cpu")), planned[1])


@cache
def _planned(spec: BatchSpec, config: PlanConfig) -> tuple[BatchShape, BatchPlan] | str:
    """Return a batch and its plan; both are read-only, and are made once."""
    ordered = in_order(spec, config.decode_threshold)
    shape = ordered.shape(derived_block_table(ordered.seq_lens, config.block_size, config.parallel.size))
    try:
        return shape, plan_batch(shape, config)
    except InvalidBatch as error:
        return f"cannot be planned: {str(error).splitlines()[0]}"


def run_check(name: str, factory: Factory, spec: BatchSpec) -> Verdict:
    """Run one check; what the builder raises is a finding, and is handed on with its traceback.

    Args:
        name: A name of ``CHECKS``.
        factory: Makes the target anew.
        spec: The batch.

    Raises:
        InvalidConfig: The factory returns something that is not a target.
    """
    target = made_by(factory)
    step = prepare(spec, target)
    if isinstance(step, str):
        return Verdict(skipped=step)
    try:
        return CHECKS[name](factory, target, step)
    except BuilderRaised as raised:
        error = raised.__cause__
        if not isinstance(error, Exception):
            raise
        text = f"{type(error).__name__}: {error}"
        found = Violation("MLA111", f"build({step.name})", "the builder raises", "metadata", text)
        return Verdict((found,), error=error)


def built(target: ConformanceTarget, batch: Any, build: Callable[[Any], Any] | None = None) -> Any:
    """Return what a builder makes of a batch.

    Args:
        target: The target.
        batch: The batch.
        build: What calls it; the target's own ``build`` by default.

    Raises:
        BuilderRaised: Whatever it raises is the cause.
    """
    try:
        return (build or target.build)(batch)
    except Exception as error:  # the builder is foreign: whatever it raises is a finding, and keeps its traceback
        raise BuilderRaised from error


def check_clauses(factory: Factory, target: ConformanceTarget, step: PreparedStep) -> Verdict:
    """Check that every clause of both levels holds for a first step."""
    report = judged(target, step.batch, built(target, step.batch))
    return Verdict(report.violations, builds=(report,))


def check_plan(factory: Factory, target: ConformanceTarget, step: PreparedStep) -> Verdict:
    """Check that each record equals the shared plan, where the contract says that it does."""
    found: list[Violation] = []
    for _, record in subjects_of(built(target, step.batch)):
        found += compare_with_plan(record, step.plan, target.declaration, target.facts)
    return Verdict(tuple(found))


def check_leak(factory: Factory, target: ConformanceTarget, step: PreparedStep) -> Verdict:
    """Check long steps, this step, the long steps again: each must be as if the others had not been."""
    longs = _long_steps(target)
    alive, first = [], []
    for long in longs:
        alive.append(built(target, long.batch))
        first.append(_snapshots(alive[-1]))
    short = built(target, step.batch)
    report = judged(target, step.batch, short, alive=records_of(alive))
    fresh = made_by(factory)
    found = [*report.violations, *_changed(_snapshots(built(fresh, step.batch)), short)]
    for long, wanted in zip(longs, first, strict=True):
        found += _changed(wanted, built(target, long.batch))
    return Verdict(tuple(dict.fromkeys(found)), builds=(report,), decided=("MLA393",))


def check_addresses(factory: Factory, target: ConformanceTarget, step: PreparedStep) -> Verdict:
    """Check that persistent arrays have the same addresses when the batch comes again."""
    names = target.expectations.persistent
    if not names:
        return Verdict(skipped="the target names no persistent field")
    captured = [addresses_of(one, names) for one in records_of(built(target, step.batch))]
    kept = [built(target, long.batch) for long in _long_steps(target)]
    kept.append(built(target, step.batch))
    found: list[Violation] = []
    for record, then in zip(records_of(kept[-1]), captured, strict=True):
        report = report_metadata(record, target.expectations.protocol, trace=BuildTrace(captured=then))
        found += [violation for violation in report.violations if violation.code == "MLA247"]
    return Verdict(tuple(found), decided=("MLA247",))


def check_reads(factory: Factory, target: ConformanceTarget, step: PreparedStep) -> Verdict:
    """Check that neither this step nor a long one reads device memory on the host."""
    memory = DeviceMemory()

    def watched(batch: Any) -> Any:
        return watched_call(target.build, batch, memory)

    made = None
    try:
        for one in (*_long_steps(target)[:1], step):
            made = built(target, one.batch, watched)
    except BuilderRaised as raised:
        if not isinstance(raised.__cause__, RuntimeError) or not is_wait(raised.__cause__):
            raise
        memory.note_error(raised.__cause__)
    name = next((path for path, _ in subjects_of(made)), type(target).__name__)
    judgement = StepContext(path=name, trace=BuildTrace(device_reads=tuple(memory.reads)))
    return Verdict(check_device_reads(judgement), decided=("MLA394",))


def check_slices(factory: Factory, target: ConformanceTarget, step: PreparedStep) -> Verdict:
    """Check the two halves of a batch, each in a lane of its own, while the other's record is alive."""
    slices = halves(step.batch, target.facts.decode_threshold or 1)
    if slices is None:
        return Verdict(skipped="one token: there is nothing to cut")
    lanes = (target, made_by(factory))
    made = [built(lane, child.batch) for lane, child in zip(lanes, slices.children, strict=True)]
    reports = tuple(
        judged(lane, child.batch, record, alive=records_of(made), slices=slices)
        for lane, child, record in zip(lanes, slices.children, made, strict=True)
    )
    return Verdict(tuple(found for report in reports for found in report.violations), builds=reports)


CHECKS: Mapping[str, Callable[[Factory, ConformanceTarget, PreparedStep], Verdict]] = MappingProxyType(
    {
        "clauses": check_clauses,
        "plan": check_plan,
        "leak": check_leak,
        "addresses": check_addresses,
        "reads": check_reads,
        "slices": check_slices,
    }
)
"""Every check of the suite, by name."""


def judged(target: ConformanceTarget, batch: Any, metadata: Any, **known: Any) -> MetadataReport:
    """Return what the clauses of both levels say of all records of a build.

    Args:
        target: The target; what it says of its last build is taken into the trace.
        batch: The batch.
        metadata: What it built.
        **known: Fields of the trace that the suite brought about.
    """
    own = target.trace() if isinstance(target, TracingTarget) else BuildTrace()
    wanted = target.expectations
    trace = replace(own, metadata_class=getattr(wanted, "metadata_class", None), **known)
    records = dict(subjects_of(metadata))
    indexer = next((one for one in records.values() if protocol_of(one) is IndexerMetadata), None)
    violations: list[Violation] = []
    held: dict[str, tuple[str, ...]] = {}
    skipped: dict[str, Mapping[str, str]] = {}
    for path, record in records.items():
        # What is said of the attention's record is not said of the indexer's.
        of_record = replace(trace, indexer=indexer)
        if record is indexer:
            of_record = replace(trace, metadata_class=None, planned_work=None, reuse=None, calls=None)
        report = report_metadata(
            record,
            None if record is indexer and len(records) > 1 else wanted.protocol,
            batch=batch,
            declaration=target.declaration,
            facts=target.facts,
            level=Level.VALUES,
            trace=of_record,
        )
        violations += report.violations
        held[path] = next(iter(report.held.values()), ())
        skipped[path] = next(iter(report.skipped.values()), {})
    return MetadataReport(tuple(dict.fromkeys(violations)), held, skipped)


def records_of(metadata: Any) -> tuple[Any, ...]:
    """Return the records in what builders return, each once."""
    return tuple(record for _, record in subjects_of(metadata))


def _snapshots(metadata: Any) -> list[Mapping[str, Any]]:
    """Return a copy of each record."""
    return [snapshot(record) for record in records_of(metadata)]


def _changed(wanted: Sequence[Mapping[str, Any]], metadata: Any) -> list[Violation]:
    """Return a violation for each field of the records that another step has changed."""
    pairs = zip(wanted, records_of(metadata), strict=True)
    return [found for one, record in pairs for found in compare_snapshots(one, snapshot(record), record)]


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
