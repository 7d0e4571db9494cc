"""Checking one object: structure first, then the clauses, with the fast path in front of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.clauses.fast_judge import all_hold
from mla_contract.contract.clauses.judge import Outcome, judge
from mla_contract.contract.schema.aiter import AiterSparseMetadata
from mla_contract.contract.schema.batch import CommonBatch
from mla_contract.contract.schema.core import MLAMetadata
from mla_contract.contract.schema.indexer import IndexerMetadata
from mla_contract.contract.schema.sparse import SparseMLAMetadata
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.facts import NO_FACTS, Facts
from mla_contract.contract.step.host import device_reads
from mla_contract.contract.step.trace import NO_TRACE, BuildTrace
from mla_contract.contract.step.views import subjects_of
from mla_contract.contract.structure.fast import structure_is_fine
from mla_contract.contract.structure.faults import CODE_OF, HELP_OF, SENTENCE_OF
from mla_contract.contract.structure.models import check_structure
from mla_contract.contract.violation import Violation
from mla_contract.errors import ContractError

if TYPE_CHECKING:
    from mla_contract.contract.schema.declaration import BackendDeclaration


_CONTAINERS = (type(None), dict, list, tuple)


class Known(TypedDict, total=False):
    """What may be known besides the object and its batch.

    Attributes:
        declaration: What the backend says of itself.
        facts: Numbers of the configuration.
        trace: Records of what happened around the build.
    """

    declaration: BackendDeclaration | None
    facts: Facts
    trace: BuildTrace


@dataclass(frozen=True, slots=True)
class Report:
    """What a check saw.

    Attributes:
        violations: Every breach.
        held: Clauses that were decided and hold, by record.
        skipped: Clauses that were not decided, with the reason, by record.
        device_reads: Arrays whose elements were read.
    """

    violations: tuple[Violation, ...]
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    skipped: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    device_reads: int = 0


def protocol_of(record: object) -> type:
    """Return the Protocol that a record looks like: batch, indexer, aiter, sparse, or plain MLA metadata."""
    if hasattr(record, "query_start_loc_cpu"):
        return CommonBatch
    if hasattr(record, "num_prefill_tokens"):
        return IndexerMetadata
    if hasattr(record, "paged_kv_indptr"):
        return AiterSparseMetadata
    return SparseMLAMetadata if hasattr(record, "topk_tokens") else MLAMetadata


def report_metadata(
    obj: object, protocol: Any = None, *, batch: object = None, level: Level = Level.STRUCTURAL, **known: Unpack[Known]
) -> Report:
    """Check whatever an engine passes around, and say also what could not be decided; never raises.

    Args:
        obj: A record, None, a dict by layer, or a list of dicts.
        protocol: The Protocol that every record must satisfy; by default each record's own, by its looks.
        batch: The common batch that the builder was given.
        level: How much may be read.
        **known: As ``Known`` says.

    Sync: none in the structural level; reads device memory in the values level
    """
    violations: list[Violation] = []
    held: dict[str, tuple[str, ...]] = {}
    skipped: dict[str, Mapping[str, str]] = {}
    before = device_reads()
    try:
        if batch is not None:
            violations.extend(check_structure(batch, CommonBatch))
        for path, record in subjects_of(obj):
            violations.extend(check_structure(record, protocol or protocol_of(record), path))
            is_batch = hasattr(record, "query_start_loc_cpu")
            subject = StepContext(
                metadata=None if is_batch else record, batch=record if is_batch else batch, path=path, **known
            )
            outcome: Outcome = judge(subject, level)
            violations.extend(outcome.violations)
            held[path], skipped[path] = outcome.held, outcome.skipped
    except Exception as error:  # noqa: BLE001 - the object is foreign; whatever it raises is a finding, not a crash
        violations.append(
            Violation(
                CODE_OF["checkable"],
                type(obj).__name__,
                SENTENCE_OF["checkable"],
                got=type(error).__name__,
                help=HELP_OF["checkable"],
            )
        )
    return Report(tuple(dict.fromkeys(violations)), held, skipped, device_reads() - before)


def check_metadata(
    obj: object,
    protocol: Any = None,
    *,
    batch: object = None,
    level: Level = Level.STRUCTURAL,
    declaration: BackendDeclaration | None = None,
    facts: Facts = NO_FACTS,
    trace: BuildTrace = NO_TRACE,
) -> tuple[Violation, ...]:
    """Return every breach by ``obj``; never raises. Arguments as for ``report_metadata``.

    The fast path decides the usual case, in which nothing is wrong.

    Sync: none in the structural level; reads device memory in the values level
    """
    try:
        if _structure_is_fine(obj, protocol, batch) and all_hold(obj, batch, level, facts, declaration, trace):
            return ()
    except Exception:  # noqa: BLE001 - the slow path reports what the object raises
        pass
    known = Known(declaration=declaration, facts=facts, trace=trace)
    return report_metadata(obj, protocol, batch=batch, level=level, **known).violations


def validate_metadata(
    obj: object, protocol: Any = None, *, batch: object = None, level: Level = Level.STRUCTURAL, **known: Unpack[Known]
) -> None:
    """Raise once, with every breach by ``obj``. Arguments as for ``report_metadata``.

    Raises:
        ContractError: If there is any breach.

    Sync: none in the structural level; reads device memory in the values level
    """
    found = check_metadata(obj, protocol, batch=batch, level=level, **known)
    if found:
        raise ContractError(violations=found)


def _structure_is_fine(obj: object, protocol: Any, batch: object) -> bool:
    """Return True only if one record of metadata, and its batch, have no structural fault."""
    if isinstance(obj, _CONTAINERS) or hasattr(obj, "query_start_loc_cpu"):
        return False
    if batch is not None and not structure_is_fine(batch, CommonBatch):
        return False
    return structure_is_fine(obj, protocol or protocol_of(obj))
