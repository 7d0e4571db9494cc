"""The check of a builder's records, compiled once for a Protocol and what is known of the builder.

What applies is worked out when something new is met: which clauses the configuration leaves, and, for the parts that a
step has, which of those can be decided. A step then runs the structure's test and those clauses, each once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mla_contract.contract.clauses.clause import Clause, Level
from mla_contract.contract.clauses.registry import Judgement, all_clauses, judge
from mla_contract.contract.schema.batch import CommonBatch
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.facts import Facts
from mla_contract.contract.step.host import is_capturing
from mla_contract.contract.step.trace import NO_TRACE, BuildTrace
from mla_contract.contract.structure.fast import structure_is_fine
from mla_contract.contract.structure.models import check_structure
from mla_contract.contract.violation import Violation

if TYPE_CHECKING:
    from mla_contract.contract.clauses.need import Need
    from mla_contract.contract.schema.declaration import BackendDeclaration


class RecordCheck:
    """Structure and clauses of one kind of record under one configuration."""

    def __init__(self, protocol: type, facts: Facts, declaration: BackendDeclaration | None, level: Level) -> None:
        """Work out which clauses the configuration leaves.

        Args:
            protocol: What the record owes.
            facts: Numbers of the configuration.
            declaration: What the backend says of itself.
            level: ``STRUCTURAL``, or ``VALUES`` for both levels.
        """
        self.protocol, self.facts, self.declaration, self.level = protocol, facts, declaration, level
        self._reads_values = level is Level.VALUES
        settled = StepContext(facts=facts, declaration=declaration)
        left = [one for one in all_clauses() if all(need.is_met(settled) for need in one.needs if need.settled)]
        traced = [one for one in left if any(need.traced for need in one.needs)]
        self._by_trace = tuple(one for one in traced if one.level is Level.STRUCTURAL or self._reads_values)
        self._structural = _Applicable([one for one in left if one.level is Level.STRUCTURAL and one not in traced])
        self._values = _Applicable([one for one in left if one.level is Level.VALUES and one not in traced])
        self._traced: Counter[str] = Counter()
        self.steps = 0
        """Steps that were checked; threads may lose a few."""

    def __call__(
        self, metadata: Any, batch: Any = None, *, trace: BuildTrace = NO_TRACE, path: str = ""
    ) -> tuple[Violation, ...]:
        """Return every breach of a record; never raises.

        Args:
            metadata: What a builder returned; None to check a batch alone.
            batch: The batch that it was given, or None.
            trace: Records of what happened around the build.
            path: How reports name the record; its class by default.

        Sync: none in the structural level; reads device memory in the values level, and none during stream capture
        """
        self.steps += 1
        found = self._structure(metadata, batch, path)
        step = self._step(metadata, batch, trace, path)
        self._structural.run(step, found)
        values = self._reads_values and not is_capturing()
        if values:
            self._values.run(step, found)
        if trace is not NO_TRACE:
            for clause in self._by_trace:
                if (values or clause.level is Level.STRUCTURAL) and clause.lacks(step) is None:
                    self._traced[clause.id] += 1
                    found += clause.check(step)
        return tuple(dict.fromkeys(found)) if found else ()

    def decided(self) -> Counter[str]:
        """Return on how many of ``steps`` each clause was decided: all that it needs was known."""
        found = Counter(self._traced)
        for part in (self._structural, self._values):
            for parts, times in list(part.steps.items()):
                found.update(dict.fromkeys(part.ids[parts], times))
        return found

    def report(self, metadata: Any, batch: Any, *, trace: BuildTrace = NO_TRACE, path: str = "") -> Judgement:
        """Return the breaches with what held and what could not be decided; arguments as for a call.

        Sync: none in the structural level; reads device memory in the values level, and none during stream capture
        """
        judged = judge(self._step(metadata, batch, trace, path), self.level)
        return replace(judged, violations=(*self._structure(metadata, batch, path), *judged.violations))

    def _step(self, metadata: Any, batch: Any, trace: BuildTrace, path: str) -> StepContext:
        """Return what the clauses look at."""
        return StepContext(
            metadata=metadata, batch=batch, declaration=self.declaration, facts=self.facts, trace=trace, path=path
        )

    def _structure(self, metadata: Any, batch: Any, path: str) -> list[Violation]:
        """Return the structural breaches of batch and record: the models say what is wrong where the test says no."""
        found: list[Violation] = []
        if batch is not None and not structure_is_fine(batch, CommonBatch):
            found += check_structure(batch, CommonBatch, "" if metadata is not None else path)
        if metadata is not None and not structure_is_fine(metadata, self.protocol):
            found += check_structure(metadata, self.protocol, path)
        return found


Run = Callable[[StepContext, list[Violation]], None]
"""Adds the breaches of a step to a list."""


class _Applicable:
    """Clauses, and which of them the parts of a step can decide."""

    def __init__(self, clauses: list[Clause]) -> None:
        self.clauses = clauses
        self.parts_of = _compile_questions({need: None for one in clauses for need in one.needs})
        self.known: dict[object, Run] = {}
        """What runs the clauses that can be decided, by the parts of a step: steps of one builder differ little."""
        self.ids: dict[object, tuple[str, ...]] = {}
        self.steps: Counter[object] = Counter()

    def run(self, step: StepContext, found: list[Violation]) -> None:
        """Add every breach of the clauses that a step can decide."""
        try:
            parts = self.parts_of(step)
        except Exception:  # noqa: BLE001 - the records are foreign: a part that cannot be read is missing for its clauses
            for one in self.clauses:
                found += one.check(step)
            return
        run = self.known.get(parts)
        if run is None:
            decidable = [one for one in self.clauses if one.lacks(step) is None]
            self.ids[parts] = tuple(one.id for one in decidable)
            run = self.known[parts] = _compile_run(decidable)
        self.steps[parts] += 1
        run(step, found)


def _compile_run(clauses: list[Clause]) -> Run:
    """Return a function that runs clauses over a step; the loop is written out, since every step runs some twenty."""
    names: dict[str, Any] = {}
    lines = ["def run(step, found):", " pass"]
    for index, one in enumerate(clauses):
        # The records are foreign: what raises cannot be decided.
        lines += [" try:", f"  breaches = p{index}(step)", f"  if breaches: found += v{index}(breaches)"]
        lines += [" except Exception: pass"]
        names |= {f"p{index}": one.probe, f"v{index}": one.violations}
    exec("\n".join(lines), names)
    run: Run = names["run"]
    return run


def _compile_questions(needs: Iterable[Need]) -> Callable[[StepContext], object]:
    """Return a function from a step to the answers of all needs that steps can answer, as one key.

    It is one generated expression, ``(q0(s), q1(s) and (q2(s), ...), ...)``: every step asks some fifteen of them, and
    what depends on an unmet need is not asked.
    """
    asked: dict[Need, None] = {}
    for need in needs:
        chain = [need]
        while chain[-1].of is not None:
            chain.append(chain[-1].of)
        asked |= dict.fromkeys(one for one in reversed(chain) if not one.settled)
    names = {need: f"q{index}" for index, need in enumerate(asked)}

    def text(parent: Need | None) -> str:
        """Return the questions below a need as the text of a tuple."""
        inner = [need for need in asked if need.of is parent]
        return f"({''.join(f'{names[one]}(s) and {text(one)}, ' for one in inner)})" if inner else "True"

    questions: Callable[[StepContext], object] = eval(
        f"lambda s: {text(None)}", {name: need.is_met for need, name in names.items()}
    )
    return questions
