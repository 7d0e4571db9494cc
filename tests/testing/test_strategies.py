"""Random legal batches break no clause; nearly legal ones are reported where their fault is recorded."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.clauses.registry import judge
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.violation import Violation
from mla_contract.testing.lowering import LoweredKind
from mla_contract.testing.random_batches import Chooser, Runner, draw_legal
from mla_contract.testing.strategies import legal_lens, legal_subjects
from tests.lab.bulk_run import survey_legal
from tests.lab.faults import PlantedFault, check_subject
from tests.lab.strategies import NearlyLegal, known_faults, nearly_legal

COUNT = int(os.environ.get("MLA_CONTRACT_SURVEY", "3000"))
"""Batches of the bulk run; the figure of the project, 100,000, takes some ten minutes."""

slow_to_draw = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def test_survey_of_legal_batches_finds_nothing() -> None:
    """Not one of the seeded random batches is reported, in either level, and all kinds of record are among them."""
    found = survey_legal(COUNT)
    assert not found.codes, "\n".join(found.examples)
    assert set(found.batches) == {kind.value for kind in LoweredKind}


def test_draw_with_one_seed_is_one_batch() -> None:
    """A batch of a survey can be drawn again alone."""
    one, other = (draw_legal(Chooser(np.random.default_rng([0, 7]))) for _ in range(2))
    assert one.setup == other.setup
    assert one.shape.seq_lens.tolist() == other.shape.seq_lens.tolist()


def test_draws_reach_every_feature() -> None:
    """Sharing, compression, both contexts, multi-token decode, flags, routing and padding all occur."""
    drawn = [draw_legal(Chooser(np.random.default_rng([1, index]))) for index in range(400)]
    configs = [draw.setup.config for draw in drawn]
    assert {config.parallel.size for config in configs} == {1, 2, 4}
    assert {config.compress_ratio for config in configs} == {1, 2}
    assert {config.release for config in configs} == {"0.27", "0.33"}
    assert {config.flatten_decodes for config in configs} == {False, True}
    assert any(0 in draw.shape.query_lens for draw in drawn)
    assert any(draw.shape.is_prefilling is not None for draw in drawn)
    assert any(
        draw.setup.all_decodes and draw.shape.max_query_len > draw.setup.config.decode_threshold for draw in drawn
    )
    assert any(config.compress_ratio > 1 and config.parallel.size > 1 for config in configs)


@pytest.mark.parametrize("runner", [Runner.OLDER, Runner.NEWER])
def test_draws_of_a_runner_pad_requests_and_tokens_and_can_be_planned(runner: Runner) -> None:
    """Padding repeats the last offset, tokens are not fewer than requests; the newer runner alone leaves out flags."""
    drawn = [draw_legal(Chooser(np.random.default_rng([2, index])), runner=runner) for index in range(300)]
    built = [(one.shape, one.build()[0]) for one in drawn]
    padded = [(shape, batch) for shape, batch in built if 0 in shape.query_lens]
    assert len(padded) > 50
    assert all(shape.num_actual_tokens >= shape.num_live_tokens == shape.query_start_loc[-2] for shape, _ in padded)
    assert all(shape.num_actual_tokens >= shape.num_reqs for shape, _ in padded)
    assert any(shape.max_query_len > 1 and len(set(shape.query_lens.tolist())) == 2 for shape, _ in padded)
    missing = [len(batch.is_prefilling) < batch.num_reqs for _, batch in padded if batch.is_prefilling is not None]
    assert missing and set(missing) == {runner is Runner.NEWER}


def test_draws_of_the_newer_runner_have_fresh_prompts_before_chunks() -> None:
    """Rows stand by their length there, and by their class in the older one."""

    def fresh_first(runner: Runner) -> int:
        drawn = [draw_legal(Chooser(np.random.default_rng([3, index])), runner=runner).shape for index in range(200)]
        fresh = [(one.context_lens == 0)[one.query_lens > 0] for one in drawn]
        return sum(bool((rows[:-1] & ~rows[1:]).any()) for rows in fresh)

    assert fresh_first(Runner.NEWER) > 20
    assert fresh_first(Runner.OLDER) == 0


@slow_to_draw
@given(legal_subjects())
def test_legal_subject_breaks_no_clause(subject: StepContext) -> None:
    """Whatever Hypothesis makes of the same generator is legal by the slow path as well."""
    assert judge(subject, Level.VALUES).violations == ()


@given(legal_lens(threshold=2))
def test_legal_lens_are_lengths_of_one_batch(lens: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Sequences cover their queries."""
    queries, totals = lens
    assert queries and all(query <= total for query, total in zip(queries, totals, strict=True))


@slow_to_draw
@given(nearly_legal())
def test_nearly_legal_subject_is_reported_at_its_fault(drawn: NearlyLegal) -> None:
    """A mechanical fault in a random batch is reported under its code and at its field, and its twin is accepted."""
    found = drawn.detection()
    assert found.level is Level.STRUCTURAL, (drawn.fault, [violation.one_line() for violation in found.violations])
    assert check_subject(drawn.fault.subject(), Level.VALUES, drawn.fault.protocol) == ()


@slow_to_draw
@given(known_faults())
def test_known_fault_has_its_record(fault: PlantedFault) -> None:
    """Each fault of the package names its kind, its field and the codes that must report it."""
    assert fault.kind and fault.path and fault.codes
    assert isinstance(Violation(fault.codes[0], fault.path, fault.kind).one_line(), str)
