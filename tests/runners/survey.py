"""Many builds by vLLM's builders on batches of vLLM's runners, and what the check says of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.attention.backend import AttentionCGSupport

from mla_contract.testing import aiter_double
from tests.runners.builders import KINDS
from tests.runners.collector import Build, Collector
from tests.runners.configuration import Setting, engine_config
from tests.runners.results import Alarm, Row, Survey
from tests.runners.traffic import Request, draw_step
from tests.runners.v1 import V1Runner
from tests.runners.v2 import V2Runner

DRAFTS = (("none", 0, None), ("mtp1", 1, "mtp"), ("mtp2", 2, "mtp"), ("mtp3", 3, "mtp"), ("ngram3", 3, "ngram"))
DCP_SIZES = (1, 2, 4, 8)
RUNNERS = {"v1": V1Runner, "v2": V2Runner}
CHIP = "gfx950"
STEPS = 3
"""Batches of one engine, one after another, so that stale rows of the step before may show."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is surveyed together.

    Attributes:
        builder: Name of the builder.
        runner: Name of the runner.
        drafts: Name of the drafts.
        setting: The engine.
    """

    builder: str
    runner: str
    drafts: str
    setting: Setting


def cells(seed: int) -> list[Cell]:
    """Return every combination in a random order, in turns of each builder on each runner."""
    rng = np.random.default_rng(seed)
    every = [
        Cell(builder, runner, name, KINDS[builder].setting(_setting(rng, drafts, method, dcp)))
        for builder in KINDS
        for runner in RUNNERS
        for name, drafts, method in DRAFTS
        for dcp in DCP_SIZES
    ]
    order = rng.permutation(len(every))
    turns: Counter[tuple[str, str, bool]] = Counter()
    turned = list[tuple[int, Cell]]()
    for cell in (every[index] for index in order):
        shared = cell.setting.dcp_size > 1
        turned.append((2 * turns[cell.builder, cell.runner, shared] + shared, cell))
        turns[cell.builder, cell.runner, shared] += 1
    return [cell for _, cell in sorted(turned, key=itemgetter(0))]


def _setting(rng: np.random.Generator, drafts: int, method: str | None, dcp: int) -> Setting:
    """Return an engine with these drafts on so many ranks."""
    interleave = int(rng.choice([4, 64])) if dcp > 1 and rng.random() < 0.3 else 1
    return Setting(drafts, method, dcp, int(rng.integers(0, dcp)), interleave)


@dataclass
class Surveyor:
    """Runs cells and counts.

    Attributes:
        collector: What the hooks call.
        survey: What was seen.
        rng: The source of randomness.
        told: For each builder and planted fault, whether it was reported where the sound record is not.
        plant: Whether to plant faults.
    """

    collector: Collector
    rng: np.random.Generator
    survey: Survey = field(default_factory=Survey)
    told: dict[str, dict[str, bool]] = field(default_factory=dict)
    plant: bool = False

    def run(self, builds: int, seed: int) -> Survey:
        """Run cells until there are enough builds."""
        with ExitStack() as stack:
            stack.enter_context(aiter_double.install(aiter_double.RELEASES[-1], CHIP))
            while self.survey.builds < builds:
                before = self.survey.builds
                for cell in cells(seed):
                    self.cell(cell)
                    if self.survey.builds >= builds:
                        break
                if self.survey.builds == before:
                    break
                seed += 1
        return self.survey

    def cell(self, cell: Cell) -> None:
        """Run one cell."""
        kind = KINDS[cell.builder]
        reason = kind.broken or (kind.alone if cell.setting.dcp_size > 1 else "")
        if reason:
            self.survey.refused[cell.builder, cell.drafts, cell.setting.dcp_size] = reason
            return
        try:
            config = engine_config(cell.setting)
            group = kind.group(cell.setting, config)
            graphs = _graphs(group.get_metadata_builder(), config, cell)
            runner: Any = RUNNERS[cell.runner](cell.setting, config, [group], graphs)
            if kind.is_indexer:
                # An indexer never runs alone: the sparse builder beside it says how requests are ordered.
                beside = KINDS["sparse"].group(cell.setting, config)
                runner.reorder_batch_threshold = beside.get_metadata_builder().reorder_batch_threshold
        except (NotImplementedError, ValueError, AssertionError) as error:
            self.survey.refused[cell.builder, cell.drafts, cell.setting.dcp_size] = f"{type(error).__name__}: {error}"
            return
        for job in self._jobs(runner, cell):
            self._attempt(cell, *job)

    def _attempt(self, cell: Cell, what: str, requests: Sequence[Request], act: Any) -> None:
        """Do one thing with a runner, and count its builds."""
        try:
            padding = act() or what
        except Exception as error:  # noqa: BLE001 - vLLM's own failure is no alarm; it is shown with what could not be run
            self.collector.take()
            self.survey.failed[cell.builder, what, f"{type(error).__name__}: {error}"[:160]] += 1
            return
        for build in self.collector.take():
            row = Row(cell.builder, cell.runner, padding, cell.drafts, cell.setting.dcp_size)
            self.survey.rows[row] += 1
            # At once, as a runner's buffers are overwritten by its next batch; a drafter's steps have done so already.
            if self.plant and what == "step" and not (cell.runner == "v2" and cell.setting.drafts > 1):
                self._plant(cell, build)
            for violation in build.violations:
                where = violation.path.partition(".")[2] or violation.path
                alarm = Alarm(row, violation.code, where)
                self.survey.alarms[alarm] += 1
                self.survey.note(alarm, build.batch, violation)

    def _plant(self, cell: Cell, build: Build) -> None:
        """Look at a build with one fault at a time."""
        known = {violation.code for violation in build.violations}
        for name, batch, record in _faults(build):
            said = {violation.code for violation in self.collector.say(build.builder, batch, record)}
            faults = self.told.setdefault(cell.builder, {})
            faults[name] = faults.get(name, False) or bool(said - known)

    def _jobs(self, runner: Any, cell: Cell) -> Iterator[tuple[str, Sequence[Request], Any]]:
        """Yield what is done with a runner: a name, the requests, and a function that returns how it was padded."""
        for index in range(STEPS):
            requests = draw_step(self.rng, cell.setting, decodes_only=index % 3 == 0)
            tables = self._tables(requests, cell.setting)
            yield "step", requests, lambda r=requests, t=tables: self._step(runner, cell, r, t)
        if cell.runner == "v1":
            yield from self._v1_dummies(runner, cell)
            return
        for descriptors in runner.graphs._capture_descs.values():
            for descriptor in descriptors[:: max(1, len(descriptors) - 1)]:
                yield "capture", (), lambda d=descriptor: runner.capture(d)
        rows = int(self.rng.integers(1, cell.setting.max_num_seqs + 1))
        yield "dummy", (), lambda: runner.dummy(rows, rows + int(self.rng.integers(0, 20)))

    def _v1_dummies(self, runner: Any, cell: Cell) -> Iterator[tuple[str, Sequence[Request], Any]]:
        """Yield the dummy runs of the V1 runner."""
        none = CUDAGraphMode.NONE
        yield "dummy", (), lambda: runner.dummy(13, cudagraph_runtime_mode=none, force_attention=True)
        yield (
            "mixed",
            (),
            lambda: runner.dummy(16, cudagraph_runtime_mode=none, force_attention=True, create_mixed_batch=True),
        )
        for mode, descriptors in runner.cudagraph_dispatcher.get_capture_descs():
            if mode == CUDAGraphMode.FULL:
                for one in descriptors[:: max(1, len(descriptors) - 1)]:
                    yield (
                        "capture",
                        (),
                        lambda d=one, m=mode: runner.dummy(
                            d.num_tokens, cudagraph_runtime_mode=m, uniform_decode=d.uniform, is_graph_capturing=True
                        ),
                    )

    def _step(self, runner: Any, cell: Cell, requests: Sequence[Request], tables: Sequence[list[int]]) -> str:
        """Run one step, and a drafter's steps behind it; return how it was padded."""
        made = runner.step(requests, tables)
        mode = made[0] if cell.runner == "v1" else made[0].cg_mode
        drafts = cell.runner == "v2" and cell.setting.method == "mtp" and cell.setting.drafts > 1
        if drafts and runner.can_draft():
            taken = list(self.collector.builds)
            descriptor = runner.draft_descriptor(made[1].num_reqs, full=mode == CUDAGraphMode.FULL)
            for step in range(1, cell.setting.drafts):
                runner.draft(made[1], descriptor, step)
            self._count_drafts(cell, taken)
        return {CUDAGraphMode.NONE: "none", CUDAGraphMode.PIECEWISE: "piecewise"}.get(mode, "full")

    def _count_drafts(self, cell: Cell, kept: list[Build]) -> None:
        """Count the builds of a drafter apart from those of the target."""
        drafted = [build for build in self.collector.builds if build not in kept]
        self.collector.builds = kept
        held, self.collector.builds = self.collector.builds, drafted
        self._attempt(cell, "draft", (), lambda: None)
        self.collector.builds = held

    def _tables(self, requests: Sequence[Request], setting: Setting) -> list[list[int]]:
        """Return disjoint blocks for each request, with room for the drafts to come."""
        span = setting.block_size * setting.dcp_size
        needs = [-(-(one.computed + one.new + setting.drafts) // span) for one in requests]
        blocks = iter((self.rng.permutation(sum(needs)) + 1).tolist())
        return [[next(blocks) for _ in range(need)] for need in needs]


def _graphs(builder: Any, config: Any, cell: Cell) -> Any:
    """Return the mode of graphs with which an engine starts; with others a capture ends it."""
    support, setting = builder.get_cudagraph_support(config, builder.kv_cache_spec), cell.setting
    if support == AttentionCGSupport.ALWAYS and KINDS[cell.builder].is_indexer:
        return CUDAGraphMode.FULL
    threshold = builder.reorder_batch_threshold
    if support == AttentionCGSupport.NEVER or (threshold is not None and threshold <= setting.drafts):
        return CUDAGraphMode.PIECEWISE
    return CUDAGraphMode.FULL_AND_PIECEWISE


def _faults(build: Build) -> Iterator[tuple[str, Any, Any]]:
    """Yield a batch and a record with one fault planted."""
    batch, record = build.batch, build.record
    yield "one decode more", batch, replace(record, num_decodes=record.num_decodes + 1)
    if record.slot_mapping.numel() and int(record.slot_mapping[0]) >= 0:
        stale = replace(record, slot_mapping=record.slot_mapping + 1)
        yield "slots of another step", replace(batch, slot_mapping=batch.slot_mapping + 1), stale
        yield "slots of another step in the record alone", batch, stale
