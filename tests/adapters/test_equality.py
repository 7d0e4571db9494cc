"""Plans can be compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_fields import FieldContextPlan
from mla_contract.adapters.plan import BatchPlan, PlanConfig, plan_batch
from mla_contract.adapters.split import Split

CONFIG = PlanConfig(block_size=16, workspace_rows=64, indexer_states=4096, topk_tokens=8)


def _plan(config: PlanConfig = CONFIG, last: int = 90) -> BatchPlan:
    table = np.arange(18).reshape(3, 6) + 1
    return plan_batch(BatchShape.of([1, 4, 4], [9, 70, last], block_table=table), config)


@pytest.mark.parametrize("release", ["0.27", "0.33"])
def test_plan_of_one_batch_equals_itself_and_no_other(release: str) -> None:
    """Comparing two plans gives a bool, whichever shape the context has."""
    config = replace(CONFIG, workspace_rows=128, release=release)
    one, same, other = _plan(config), _plan(config), _plan(config, last=91)
    assert (one == same) is True
    assert (one != same) is False
    assert (one == other) is False
    assert (one != other) is True
    assert one == one


@pytest.mark.parametrize("release", ["0.27", "0.33"])
@pytest.mark.parametrize("part", BatchPlan._fields)
def test_parts_of_a_plan_are_compared_alike(part: str, release: str) -> None:
    """Every part has an equality of its own, and a plan differs as soon as one part does."""
    config = replace(CONFIG, workspace_rows=128, release=release)
    one, same = _plan(config), _plan(config)
    value = getattr(one, part)
    assert value is not None
    changed: Any = None if not isinstance(value, Split) else Split(0, 0, 0, 0)
    assert one != one._replace(**{part: changed})
    if not isinstance(value, np.ndarray):
        assert value == getattr(same, part)


def test_records_with_equal_members_of_another_type_differ() -> None:
    """Neither a plain tuple nor an array of another width is equal."""
    plan = _plan()
    assert plan.tokens != tuple(plan.tokens)
    assert tuple(plan.tokens) != plan.tokens
    assert plan.tokens != plan.tokens._replace(visible=plan.tokens.visible.astype(np.int64))
    assert plan.tokens == plan.tokens._replace(visible=plan.tokens.visible.copy())


def test_records_with_arrays_have_no_hash() -> None:
    """What holds arrays cannot be a key, in either kind of record; what holds ints can."""
    context = _plan(replace(CONFIG, workspace_rows=128, release="0.27")).context
    assert isinstance(context, FieldContextPlan)
    for record in (_plan(), context):
        with pytest.raises(TypeError, match="unhashable"):
            hash(record)
    assert hash(_plan().split) == hash(_plan().split)
