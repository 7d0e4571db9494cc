"""Checking whatever an engine passes around: each record by the check that was compiled for its kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from mla_contract.contract.check import RecordCheck
from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.schema.aiter import AiterSparseMetadata
from mla_contract.contract.schema.batch import CommonBatch
from mla_contract.contract.schema.core import MLAMetadata
from mla_contract.contract.schema.indexer import IndexerMetadata
from mla_contract.contract.schema.layer_records import WindowMetadata
from mla_contract.contract.schema.sparse import SparseMLAMetadata
from mla_contract.contract.step.facts import NO_FACTS, Facts
from mla_contract.contract.step.host import device_reads
from mla_contract.contract.step.trace import NO_TRACE, BuildTrace
from mla_contract.contract.step.views import subjects_of
from mla_contract.contract.structure.faults import CODE_OF, HELP_OF, SENTENCE_OF
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
class MetadataReport:
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
    """Return the Protocol that a record looks like: batch, window, indexer, aiter, sparse, or plain MLA metadata."""
    if _is_batch(record):
        return CommonBatch
    if hasattr(record, "decode_swa_lens"):
        return WindowMetadata
    if hasattr(record, "num_prefill_tokens"):
        return IndexerMetadata
    if hasattr(record, "paged_kv_indptr"):
        return AiterSparseMetadata
    return SparseMLAMetadata if hasattr(record, "topk_tokens") else MLAMetadata


def report_metadata(
    obj: object, protocol: Any = None, *, batch: object = None, level: Level = Level.STRUCTURAL, **known: Unpack[Known]
) -> MetadataReport:
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
    facts, declaration = known.get("facts", NO_FACTS), known.get("declaration")
    try:
        for path, record in subjects_of(obj):
            check = _compiled(protocol or protocol_of(record), facts, declaration, level)
            judged = check.report(*_sides(record, batch), trace=known.get("trace", NO_TRACE), path=path)
            violations.extend(judged.violations)
            held[path], skipped[path] = judged.held, judged.skipped
    except Exception as error:  # noqa: BLE001 - the object is foreign; whatever it raises is a finding, not a crash
        violations.append(_uncheckable(obj, error))
    return MetadataReport(tuple(dict.fromkeys(violations)), held, skipped, device_reads() - before)


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

    Sync: none in the structural level; reads device memory in the values level
    """
    found: list[Violation] = []
    try:
        # A record alone is what a builder returns at every step: it is not worth a walk through containers.
        records = subjects_of(obj) if isinstance(obj, _CONTAINERS) else ((type(obj).__name__, obj),)
        for path, record in records:
            check = _compiled(protocol or protocol_of(record), facts, declaration, level)
            found += check(*_sides(record, batch), trace=trace, path=path)
    except Exception as error:  # noqa: BLE001 - the object is foreign; whatever it raises is a finding, not a crash
        found.append(_uncheckable(obj, error))
    return tuple(dict.fromkeys(found)) if found else ()


def _sides(record: object, batch: object) -> tuple[object, object]:
    """Return a record and its batch; a batch that is checked itself has no record."""
    return (None, record) if _is_batch(record) else (record, batch)


def _is_batch(record: object) -> bool:
    """Return whether an object is a common batch: records of windows have its host offsets, but not its block table."""
    return hasattr(record, "query_start_loc_cpu") and not hasattr(record, "block_table")


def _compiled(protocol: type, facts: Facts, declaration: BackendDeclaration | None, level: Level) -> RecordCheck:
    """Return the check of a Protocol under what is known, compiled once."""
    # By identity: a builder hands over the same objects at every step, and hashing some forty numbers costs more than
    # the look-up. Each check keeps its objects alive, so that no other object can take their identity.
    key = protocol, id(facts), id(declaration), level is Level.VALUES
    found = _checks.get(key)
    if found is None:
        if len(_checks) >= _MOST_CHECKS:
            _checks.clear()
        found = _checks[key] = RecordCheck(protocol, facts, declaration, level)
    return found


def decided_steps() -> list[tuple[str, Mapping[str, int], int]]:
    """Return for each check in use its Protocol, on how many steps each clause was decided, and how many there were.

    A clause that is not named was decided on none: it must not be counted as held.
    """
    return [(check.protocol.__name__, check.decided(), check.steps) for check in list(_checks.values()) if check.steps]


_checks: dict[tuple[type, int, int, bool], RecordCheck] = {}
_MOST_CHECKS = 256
"""More than an engine has builders; who makes new facts at every call pays for compiling, and memory stays bounded."""


def _uncheckable(obj: object, error: Exception) -> Violation:
    """Return the finding about an object that raises when it is looked at."""
    return Violation(
        CODE_OF["checkable"],
        type(obj).__name__,
        SENTENCE_OF["checkable"],
        got=type(error).__name__,
        help=HELP_OF["checkable"],
    )


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
