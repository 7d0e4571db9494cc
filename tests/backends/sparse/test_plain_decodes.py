"""Steps of plain decodes take a short way; it ends where the shared plan ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mla_contract.backends.sparse.lowering import LOWERED, Lowering
from mla_contract.backends.sparse.planning import plan_of
from mla_contract.errors import InvalidContract
from mla_contract.testing.records import PlainBatch
from tests.backends.sparse.steps import SMALL, step_batch, token_padded

CONFIG = replace(SMALL, max_num_seqs=16, max_capture_size=16, max_num_batched_tokens=512)
PLAIN = {
    "one": ((1,), (2,)),
    "around top-k": ((1, 1, 1), (127, 128, 129)),
    "many": ((1,) * 16, tuple(range(2, 4000, 250))),
    "without context": ((1, 1), (31, 1)),
}
OTHERS = {
    "requests padded alone": ((1, 1, 0), (31, 90, 0)),
    "two tokens": ((1, 2), (31, 40)),
    "prefill": ((1, 9), (31, 9)),
}


def buffers_of(lowering: Lowering) -> dict[str, list[int]]:
    """Return every row of every buffer."""
    return {name: lowering.buffers.buffer(name).tolist() for name in LOWERED}


def plain_batches() -> dict[str, PlainBatch]:
    """Return plain batches, some of them as graph replay pads them: the last offset repeats, and tokens are raised."""
    made = {name: step_batch(*lens, CONFIG) for name, lens in PLAIN.items()}
    for live, size in ((1, 2), (3, 4), (5, 16)):
        lens = (1,) * live + (0,) * (size - live), tuple(range(90, 90 + live)) + (0,) * (size - live)
        made[f"{live} of {size}"] = token_padded(step_batch(*lens, CONFIG), size)
    return made


@pytest.mark.parametrize("indexer", [True, False], ids=["both records", "attention alone"])
@pytest.mark.parametrize("name", plain_batches())
def test_plain_step_leaves_what_the_plan_says(name: str, indexer: bool) -> None:
    """After a long mixed step, the short way leaves every row of every buffer, and every count, as the plan does."""
    of = plain_batches()[name]
    short, long = Lowering(CONFIG, "cpu"), Lowering(CONFIG, "cpu")
    for lowering in (short, long):
        lowering.step(step_batch((1, 2, 90, 40), (300, 301, 100, 40), CONFIG))
    step, plan = short.step(of, indexer=indexer), plan_of(of, CONFIG, indexer=indexer)
    lowered = long.buffers.lower(plan)
    assert step.known_plan is None
    assert buffers_of(short) == buffers_of(long)
    assert (step.split, step.decode_max_query_len, step.has_indexer) == (plan.split, 1, indexer)
    rows = [one for one in step.lowered if indexer or not one.startswith("decode")]  # type: ignore[union-attr]
    assert all(torch.equal(step.lowered[one], lowered[one]) for one in rows)
    assert step.query_lens.tobytes() == plan.shape.query_lens.tobytes()
    assert step.sparse_start_loc is not None and plan.sparse_start_loc is not None
    assert step.sparse_start_loc.tobytes() == plan.sparse_start_loc.tobytes()
    assert step.plan.tokens.visible.tolist() == of.seq_lens.tolist()


@pytest.mark.parametrize("name", OTHERS)
def test_step_of_another_kind_is_planned(name: str) -> None:
    """Requests padded without tokens, prompts and longer queries go the long way."""
    assert Lowering(CONFIG, "cpu").step(step_batch(*OTHERS[name], CONFIG)).known_plan is not None


def test_step_with_a_length_on_a_padding_request_is_planned() -> None:
    """Rows behind the live ones hold nothing, or the step is an ordinary one."""
    of = plain_batches()["3 of 4"]
    bounds = of.seq_lens.clone()
    bounds[3] = 7
    assert Lowering(CONFIG, "cpu").step(replace(of, seq_lens_cpu_upper_bound=bounds)).known_plan is not None
    assert Lowering(CONFIG, "cpu").step(of).known_plan is None


@pytest.mark.parametrize("flags", [(False, False), (False, True), (False,)])
def test_plain_step_with_flags_is_plain(flags: tuple[bool, ...]) -> None:
    """A prompt's last token decodes as others do, and flags may be missing for padding."""
    lens = ((1, 1), (31, 40)) if len(flags) == 2 else ((1, 0), (31, 0))
    of = replace(token_padded(step_batch(*lens, CONFIG), 2), is_prefilling=torch.tensor(flags))
    step = Lowering(CONFIG, "cpu").step(of)
    assert step.known_plan is None
    assert step.split == plan_of(of, CONFIG).split == (2, 0, 2, 0)


@pytest.mark.parametrize("lens", [PLAIN["one"], OTHERS["requests padded alone"], OTHERS["prefill"]])
def test_indexer_of_a_step_without_it_is_refused(lens: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """The attention's step has no rows and chunks for the indexer; a step with them yields the record."""
    lowering, of = Lowering(CONFIG, "cpu"), step_batch(*lens, CONFIG)
    with pytest.raises(InvalidContract, match="without the indexer"):
        lowering.indexer(lowering.step(of, indexer=False))
    assert lowering.indexer(lowering.step(of)).decode is not None
