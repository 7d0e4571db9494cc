"""The recorded batches are what vLLM's runners make, and every generator's batches have their properties."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from mla_contract.adapters.context_parallel import local_lens
from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.clauses.registry import judge
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.trace import BuildTrace
from mla_contract.profiles.installed import installed_release
from mla_contract.testing.conformance import CHECKS, run_check
from mla_contract.testing.corpus import conformance_batches
from mla_contract.testing.random_batches import Chooser, Draw, Runner, draw_legal
from mla_contract.testing.runner_batches import RunnerBatch, batch_of_each_kind, runner_batches
from mla_contract.testing.runner_common import common_batch_of
from mla_contract.testing.slicing import halves
from mla_contract.testing.strategies import legal_draws
from mla_contract.testing.targets import reference_targets
from tests.runners.interpreter import missing
from tests.runners.processes import run_python
from tests.testing.legality import Numbers, numbers_of, numbers_of_draw, order_faults, padding_faults

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "mla_contract" / "testing" / "runner_batches.json"
PADDINGS = {"v1": {"none", "full", "piecewise", "capture", "dummy", "mixed"}}
PADDINGS["v2"] = PADDINGS["v1"] - {"mixed"} | {"draft"}
UNSORTED = """
import sys
from tests.runners.interpreter import prepare
prepare()
from vllm.v1.worker.gpu import model_runner
assert model_runner.sort_batch_req_ids
model_runner.sort_batch_req_ids = lambda tokens, *rest, **more: list(tokens)
from scripts.record_runner_batches import main
sys.exit(main())
"""


def _recorded_now(target: Path, *command: str) -> dict[str, Any]:
    """Return what the installed runners make now."""
    release = next(iter(runner_batches().values())).release
    if missing() is None and installed_release() != release:
        pytest.skip(f"recorded with another release than {installed_release()}")
    done = run_python(*command, "--target", str(target))
    assert done.returncode == 0, done.stderr[-3000:]
    made: dict[str, Any] = json.loads(target.read_text("utf-8"))
    return made


@pytest.mark.slow
def test_runners_make_what_is_recorded(tmp_path: Path) -> None:
    """The runners hand over the same numbers when they are driven again; if not, record them anew with the script."""
    made = _recorded_now(tmp_path / "now.json", "-m", "scripts.record_runner_batches")
    assert made == json.loads(RECORD.read_text("utf-8"))


@pytest.mark.slow
def test_runner_that_does_not_sort_makes_something_else(tmp_path: Path) -> None:
    """The comparison is not vacuous: without V2's sorting its batches are others, and break its order; V1's are not."""
    made = _recorded_now(tmp_path / "unsorted.json", "-c", UNSORTED)
    kept = json.loads(RECORD.read_text("utf-8"))
    for runner, same in (("v1", True), ("v2", False)):
        of = [[row for row in record["batches"] if row["runner"] == runner] for record in (made, kept)]
        assert (of[0] == of[1]) is same, runner


def test_record_has_every_kind_and_says_what_made_it() -> None:
    """Both runners, every padding, drafts and sharing; release and function stand beside each batch."""
    every = runner_batches().values()
    assert len(every) > 250
    for runner, paddings in PADDINGS.items():
        assert {batch.padding for batch in every if batch.runner == runner} == paddings
    seen = {(batch.runner, batch.drafts) for batch in every}
    assert seen == set(product(("v1", "v2"), ("none", "mtp1", "mtp2", "mtp3", "ngram3")))
    assert {batch.parallel.size for batch in every} == {1, 2, 4, 8}
    assert all(batch.release and batch.function.startswith("vllm.v1.worker.") for batch in every)


def test_record_has_the_facts_that_clauses_once_misread() -> None:
    """Repeated offsets, fresh before chunk, missing flags, bounds, device lengths of its own, padded slots."""
    every = list(runner_batches().values())

    def context(batch: RunnerBatch) -> list[int]:
        return [total - query for query, total in zip(batch.query_lens, batch.seq_lens, strict=True) if query]

    steps = [batch for batch in every if batch.is_step]
    facts = {
        "graph of decodes": [b for b in steps if 0 in b.query_lens and set(b.query_lens) == {0, 1}],
        "graph of tokens": [b for b in steps if 0 in b.query_lens and len(set(b.query_lens)) > 2],
        "rows without tokens": [b for b in steps if 0 in b.query_lens and sum(b.query_lens) == b.num_actual_tokens],
        "fresh before a chunk": [b for b in steps if b.runner == "v2" and 0 in context(b)[:-1] and context(b)[-1]],
        "flags missing": [b for b in steps if b.has_live_flags],
        "bound on lengths": [b for b in every if b.max_seq_len > max(b.seq_lens_cpu_upper_bound)],
        "bound on queries": [b for b in every if b.max_query_len > max(b.query_lens)],
        "device differs": [b for b in steps if b.seq_lens != b.seq_lens_cpu_upper_bound],
        "slots alone padded": [b for b in steps if b.padding == "piecewise" and b.num_slots > b.num_actual_tokens],
        "threshold below drafts": [b for b in steps if b.drafts != "none" and b.ordered_by == 1],
    }
    assert {name for name, found in facts.items() if not found} == set()


def test_recorded_batches_are_padded_and_ordered_as_stated() -> None:
    """What runners make has the properties to which generators are held."""
    for batch in runner_batches().values():
        assert padding_faults(numbers_of(batch)) == [], batch
        if batch.is_step:
            assert order_faults(numbers_of(batch)) == [], batch


def test_recorded_local_lengths_are_those_of_the_sharing() -> None:
    """Each rank's lengths follow from the device's, or from the bounds that V1 has while drafts are rejected."""
    shared = [batch for batch in runner_batches().values() if batch.parallel.size > 1]
    assert len(shared) > 100
    for batch in shared:
        known = [batch.seq_lens, batch.seq_lens_cpu_upper_bound]
        lens = [tuple(local_lens(np.asarray(one, np.int32), batch.parallel).tolist()) for one in known]
        assert batch.dcp_local_seq_lens in lens, batch


@pytest.mark.parametrize("runner", Runner)
def test_drawn_batches_have_the_properties_of_recorded_ones(runner: Runner) -> None:
    """Padding, order and flags of seeded draws are those of the runner."""
    padded = 0
    for index in range(1000):
        numbers = numbers_of_draw(draw_legal(Chooser(np.random.default_rng([9, index])), runner=runner))
        assert padding_faults(numbers) + order_faults(numbers) == [], (index, numbers)
        padded += sum(numbers.query_lens) < numbers.num_tokens or 0 in numbers.query_lens
    assert padded > 300


@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
@given(legal_draws())
def test_strategies_draw_batches_with_the_properties_of_recorded_ones(drawn: Draw) -> None:
    """So do Hypothesis's."""
    numbers = numbers_of_draw(drawn)
    assert padding_faults(numbers) + order_faults(numbers) == []


def test_conformance_batches_are_padded_as_runners_pad() -> None:
    """Batches of vLLM's tests that are padded raise tokens with requests; a batch of each recorded kind stands by."""
    of = conformance_batches()
    assert {batch.name for batch in batch_of_each_kind()} <= set(of)
    for spec in of.values():
        if 0 in spec.query_lens and spec.ordered_by is None:
            numbers = Numbers(
                query_lens=spec.query_lens,
                seq_lens=spec.seq_lens,
                num_tokens=spec.num_actual_tokens or sum(spec.query_lens),
                flags=spec.is_prefilling,
                ordered_by=1,
                max_num_seqs=256,
                newer=False,
                live_flags=False,
            )
            assert padding_faults(numbers) == [], spec.name


SOUND = Numbers(
    query_lens=[1, 1, 0],
    seq_lens=[9, 8, 0],
    num_tokens=3,
    flags=[False] * 3,
    ordered_by=1,
    max_num_seqs=8,
    newer=False,
    live_flags=False,
)


@pytest.mark.parametrize(
    "change",
    [
        {"num_tokens": 2},
        {"query_lens": [1, 1, 1]},
        {"query_lens": [1, 0, 1], "seq_lens": [9, 0, 8]},
        {"seq_lens": [9, 8, 1]},
        {"query_lens": [1, 7, 0], "num_tokens": 12},
        {"flags": [False] * 2},
        {"live_flags": True},
    ],
)
def test_padding_that_no_runner_makes_is_told(change: dict[str, Any]) -> None:
    """Requests without tokens in a graph of decodes, padding of the uniform length, and the like."""
    assert padding_faults(replace(SOUND, **change))
    assert padding_faults(SOUND) == []


@pytest.mark.parametrize("newer", [False, True])
def test_order_that_no_runner_makes_is_told(newer: bool) -> None:
    """A prompt before a decode is of no runner; each runner's own order is not the other's."""
    rows: dict[str, Any] = {"query_lens": [20, 30], "seq_lens": [20, 70], "flags": [True] * 2, "num_tokens": 50}
    fresh_first = replace(SOUND, **rows, newer=newer)
    assert bool(order_faults(fresh_first)) is not newer
    turned = replace(fresh_first, query_lens=[30, 20], seq_lens=[70, 20])
    assert bool(order_faults(turned)) is newer
    assert order_faults(replace(SOUND, query_lens=[9, 1], seq_lens=[20, 40], flags=[True, False], newer=newer))


@pytest.mark.parametrize("check", CHECKS)
def test_reference_takes_every_recorded_batch(check: str) -> None:
    """The suite on a recorded batch is no rejection: the reference passes on one of each kind, and skips none."""
    factory = reference_targets()["reference sparse"]
    for batch in batch_of_each_kind():
        verdict = run_check(check, factory, conformance_batches()[batch.name])
        assert verdict.violations == (), batch
        assert verdict.skipped is None or "one token" in verdict.skipped


def test_slice_of_a_padded_batch_ends_at_its_live_tokens() -> None:
    """Both halves of a replayed graph are sound; offsets that claim its padding for a request are reported."""
    batch = common_batch_of(runner_batches()["v1_full_none_68"], 16)
    assert int(batch.query_start_loc_cpu[-1]) < batch.num_actual_tokens
    slices = halves(batch, 1)
    assert slices is not None

    def judged() -> set[str]:
        step = StepContext(metadata=batch, batch=batch, trace=BuildTrace(slices=slices))
        return {violation.code for violation in judge(step, Level.STRUCTURAL).violations} & {"MLA413"}

    assert judged() == set()
    slices.children[1].batch.query_start_loc_cpu[-1] += 1
    assert judged() == {"MLA413"}
