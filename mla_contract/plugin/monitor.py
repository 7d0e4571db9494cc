"""Looking at one build: which records it returned, what each owes, and what the mode does with a breach."""

from __future__ import annotations

import atexit
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import ref

from mla_contract.contract.notes import notes_of
from mla_contract.contract.schema.declaration import BackendDeclaration
from mla_contract.contract.step.context import read
from mla_contract.contract.step.facts import NO_FACTS, Facts
from mla_contract.contract.step.trace import NO_TRACE, BuildTrace
from mla_contract.contract.step.views import subjects_of
from mla_contract.errors import ContractError
from mla_contract.plugin.facts import facts_of
from mla_contract.plugin.operator import Operator
from mla_contract.plugin.readers import StepReads, name_readers, without_unread
from mla_contract.plugin.records import RecordKind, impl_classes, kind_of, protocol_for
from mla_contract.runtime.check import check_metadata
from mla_contract.runtime.hook import respond
from mla_contract.runtime.settings import Mode, Settings, current_settings
from mla_contract.runtime.tally import MOST_KINDS, counted_as

logger = logging.getLogger("mla_contract")


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Where a builder comes from.

    Attributes:
        backend: The attention backend's class; None when it is not known.
        spec: Spec of the cache manager's blocks.
        config: The VllmConfig.
        packed: Whether block table and slots count different blocks.
    """

    backend: Any = None
    spec: Any = None
    config: Any = None
    packed: bool = False


BuilderKnowledge = tuple[Facts, BackendDeclaration | None]
"""What holds for all steps of a builder: numbers of the configuration, and what its backend declares."""

T = TypeVar("T")


class _OfBuilders(Generic[T]):
    """Values of builders, for as long as they live; by identity, because some of vLLM's builders cannot be hashed."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[ref[Any], T]] = {}

    def __setitem__(self, builder: Any, value: T) -> None:
        key = id(builder)
        self._values[key] = ref(builder, lambda _: self._values.pop(key, None)), value

    def get(self, builder: Any) -> T | None:
        """Return the value of a builder, or None."""
        alive, value = self._values.get(id(builder), (None, None))
        return value if alive is not None and alive() is builder else None


def _left_alone(name: str) -> str:
    """Return what is said of a class that is not checked."""
    return f"left alone: {name}, because no reader of this contract reads it"


class Monitor:
    """Checks every build of this process, and counts the classes that it saw; keeps no metadata alive."""

    def __init__(self, minor: str) -> None:
        self.minor = minor
        self.operator = Operator()
        self._origins: _OfBuilders[Origin] = _OfBuilders()
        self._known: _OfBuilders[tuple[BuilderKnowledge, BuilderKnowledge]] = _OfBuilders()
        self._last: _OfBuilders[ref[Any]] = _OfBuilders()
        self._seen: Counter[tuple[str, str, bool]] = Counter()
        self._left: set[str] = set()
        self._notes: Counter[tuple[str, str]] = Counter()
        self._lock = Lock()
        atexit.register(self.log_seen)

    def remember(self, builder: Any, origin: Origin) -> None:
        """Keep where a builder comes from, for as long as the builder lives."""
        self.operator.say_armed()
        try:
            self._origins[builder] = origin
        except TypeError:
            logger.debug("mla-contract: %s cannot be remembered", type(builder).__name__)

    def origin_of(self, builder: Any) -> Origin:
        """Return where a builder comes from; what it says itself when it was not remembered."""
        return self._origins.get(builder) or Origin(spec=getattr(builder, "kv_cache_spec", None))

    def look(self, builder: Any, batch: Any, result: Any, *, capturing: bool = False) -> None:
        """Check what a builder returned, and do what the mode says.

        Raises:
            ContractError: In the mode ``error``, with every breach.

        Sync: none in the structural level; reads device memory in the values level
        """
        settings = current_settings()
        if settings.mode is not Mode.OFF and result is not None:
            self.guarded(lambda: self._look(settings, builder, batch, result, capturing))

    def look_at(self, seen: Callable[[], tuple[Any, Any]], result: Any, *, capturing: bool = False) -> None:
        """Do the same for the builder and the batch that ``seen`` returns; it may raise.

        Raises:
            ContractError: In the mode ``error``, with every breach.

        Sync: none in the structural level; reads device memory in the values level
        """
        if result is not None:
            self.guarded(lambda: self.look(*seen(), result, capturing=capturing))

    def guarded(self, step: Callable[[], None]) -> None:
        """Run a step of the check: its own faults must not stop an engine that works; they are logged once each.

        Raises:
            ContractError: If the step does.
        """
        try:
            step()
        except ContractError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a foreign object raises
            self.operator.say_failed(error)

    def _look(self, settings: Settings, builder: Any, batch: Any, result: Any, capturing: bool) -> None:
        """Check each record of a result."""
        origin = self.origin_of(builder)
        for _, record in subjects_of(result):
            kind = kind_of(origin.backend, origin.spec, record)
            if kind is None:
                self._leave(record)
                continue
            facts, declaration = self._known_of(builder, origin, capturing)
            found = check_metadata(
                record,
                protocol_for(kind, record),
                batch=batch,
                level=settings.level,
                declaration=declaration,
                facts=facts,
                # Records of one result belong to one step, and may share what they like.
                trace=self._trace_of(builder, record) if record is result else NO_TRACE,
            )
            if found:
                prefills = bool(read(record, "num_prefills", True))
                step: StepReads = {
                    "has_prefills": prefills,
                    "dcp_size": facts.dcp_size,
                    "impl": impl_classes(origin.backend),
                }
                found = name_readers(without_unread(found, kind, self.minor, **step), kind, self.minor, **step)
            self._count(kind, record, bool(found))
            self._note(record, batch)
            respond(settings, found)

    def _known_of(self, builder: Any, origin: Origin, capturing: bool) -> BuilderKnowledge:
        """Return what is known of a builder, read once: one check is compiled for the same objects."""
        try:
            known = self._known.get(builder)
            if known is None:
                facts = facts_of(builder, origin.config, origin.spec, packed=origin.packed)
                said = getattr(builder, "declaration", None)
                declaration = said if isinstance(said, BackendDeclaration) else None
                known = (replace(facts, capturing=False), declaration), (replace(facts, capturing=True), declaration)
                self._known[builder] = known
            return known[capturing]
        except TypeError:
            return NO_FACTS, None

    def _trace_of(self, builder: Any, record: Any) -> BuildTrace:
        """Return the builder's last record as alive while anybody else keeps it; this one is the last from now on."""
        try:
            last = self._last.get(builder)
            alive = None if last is None else last()
            self._last[builder] = ref(record)
        except TypeError:  # a record or builder that nothing can refer to weakly
            return NO_TRACE
        return NO_TRACE if alive is None or alive is record else BuildTrace(alive=(alive,))

    def _count(self, kind: RecordKind, record: Any, broken: bool) -> None:
        """Count a record by kind and class."""
        name = type(record).__qualname__
        with self._lock:
            key = counted_as(self._seen, (kind.value, name, broken), (kind.value, _OTHERS, broken))
            self._seen[key] += 1
        self.operator.say_checked(key[0], key[1], self.counts)

    def _leave(self, record: Any) -> None:
        """Remember a class that is not checked, and say so once."""
        name = type(record).__qualname__
        with self._lock:
            is_new = name not in self._left and len(self._left) < MOST_KINDS
            if is_new:
                self._left.add(name)
        if is_new:
            logger.info("mla-contract: %s", _left_alone(name))

    def _note(self, record: Any, batch: Any) -> None:
        """Count what is inconsistent and harmless."""
        found = notes_of(record, batch)
        if found:
            with self._lock:
                for note in found:
                    key = note.name, type(record).__qualname__
                    self._notes[counted_as(self._notes, key, (note.name, _OTHERS))] += 1

    def notes(self) -> dict[tuple[str, str], int]:
        """Return how many builds deserved each note, by note and class."""
        with self._lock:
            return dict(self._notes)

    def counts(self) -> list[tuple[str, str, int, int]]:
        """Return kind, class, builds and broken builds of each class that was seen."""
        with self._lock:
            seen = dict(self._seen)
        names = sorted({(kind, name) for kind, name, _ in seen})
        each = [(kind, name, seen.get((kind, name, True), 0), seen.get((kind, name, False), 0)) for kind, name in names]
        return [(kind, name, broken + clean, broken) for kind, name, broken, clean in each]

    def table(self) -> str:
        """Return a line for each class: its builds, and how many broke the contract; then notes, and who is left."""
        lines = [f"{builds:>8}  {kind:<12}{name}  broken: {broken}" for kind, name, builds, broken in self.counts()]
        lines += [f"{builds:>8}  note        {name}: {text}" for (text, name), builds in sorted(self.notes().items())]
        with self._lock:
            lines += [_left_alone(name) for name in sorted(self._left)]
        return "\n".join(lines)

    def log_seen(self) -> None:
        """Log the table of classes, if there is anything in it."""
        table = self.table()
        if table:
            logger.info("mla-contract: builds checked in this process:\n%s", table)


_OTHERS = "(all other classes)"
