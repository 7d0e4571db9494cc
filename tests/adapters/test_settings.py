"""Configurations are checked when they are made, not in the first step that reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.capacity import Capacity
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.context_rule import ContextRule
from mla_contract.adapters.decode import DecodeRule
from mla_contract.adapters.fault import InvalidConfig
from mla_contract.adapters.indexer_chunks import IndexerRule
from mla_contract.adapters.plan import PlanConfig, plan_batch
from mla_contract.adapters.split import SplitRule

PLAN: dict[str, Any] = {
    "block_size": 16,
    "decode_threshold": 2,
    "workspace_rows": 128,
    "indexer_states": 4096,
    "topk_tokens": 8,
    "flatten_decodes": True,
    "parallel": ContextParallel(2, 1, 4),
}
MOST_SEQS: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 16}
SHARED = ContextParallel(2, 0, 3)

BAD = [
    *((PlanConfig, PLAN, "block_size", value) for value in (0, -16, 16.0, True, "16", None)),
    *((PlanConfig, PLAN, "decode_threshold", value) for value in (0, -1, 1.5)),
    *((PlanConfig, PLAN, name, 0) for name in ("indexer_states", "topk_tokens", "next_n", "compress_ratio")),
    *((PlanConfig, PLAN, "workspace_rows", value) for value in (-1, 0, 15, "128")),
    (PlanConfig, PLAN, "logits_bytes", 3),
    (PlanConfig, PLAN, "release", 0.33),
    (PlanConfig, PLAN, "parallel", 2),
    (PlanConfig, PLAN, "parallel", SHARED),
    (PlanConfig, PLAN | {"parallel": ContextParallel(2, 0, 1)}, "compress_ratio", 2),
    (ContextParallel, {}, "size", 0),
    (ContextParallel, {"size": 2}, "rank", 2),
    (ContextParallel, {"size": 2}, "rank", -1),
    (ContextParallel, {"size": 2}, "interleave", 0),
    (ContextRule, {"workspace_rows": 64, "block_size": 64}, "workspace_rows", 63),
    (ContextRule, {"workspace_rows": 64, "block_size": 64}, "block_size", 0),
    (ContextRule, {"workspace_rows": 64, "block_size": 64}, "release", 33),
    (IndexerRule, {"buffer_states": 1, "logits_bytes": 4}, "buffer_states", 0),
    (DecodeRule, {}, "next_n", 0),
    (SplitRule, {}, "threshold", -1),
    *((Capacity, MOST_SEQS, name, 0) for name in ("max_num_seqs", "max_num_batched_tokens", "next_n", "span")),
    *((Capacity, MOST_SEQS, name, -1) for name in ("max_capture_size", "max_context_tokens", "workspace_rows")),
]


@pytest.mark.parametrize(("cls", "good", "name", "bad"), BAD)
def test_setting_that_nothing_can_be_planned_with_is_refused(
    cls: Callable[..., object], good: dict[str, Any], name: str, bad: Any
) -> None:
    """The error is a ValueError, names the setting, and says what was expected and found; without it, all is well."""
    cls(**good)
    with pytest.raises(ValueError, match=name if name != "parallel" else "PlanConfig.parallel") as caught:
        cls(**good | {name: bad})
    assert isinstance(caught.value, InvalidConfig)
    assert "expected" in str(caught.value)
    assert "got" in str(caught.value)


def test_settings_at_fault_are_told_together() -> None:
    """One error names every setting at fault, with its value."""
    with pytest.raises(InvalidConfig) as caught:
        PlanConfig(block_size=0, decode_threshold=-1, topk_tokens=0)
    named = [(fault.what, fault.got) for fault in caught.value.faults]
    assert named == [("PlanConfig.block_size", 0), ("PlanConfig.decode_threshold", -1), ("PlanConfig.topk_tokens", 0)]
    assert "PlanConfig.block_size\n  expected  an int of at least 1\n  got       0" in str(caught.value)


def test_configuration_that_was_made_plans_every_kind_of_step() -> None:
    """The legal twin of all that is refused above plans decodes, prefills, and both; ints of NumPy are ints."""
    config = PlanConfig(**PLAN | {"block_size": np.int64(16)})
    for lens in ([1, 2], [20], [1, 20, 0]):
        shape = BatchShape.of(lens, [length + 30 if length else 0 for length in lens])
        plan = plan_batch(shape, config)
        assert (plan.decode is not None, plan.context is not None) == (lens != [20], lens != [1, 2])


def test_workspace_of_one_aligned_piece_is_enough() -> None:
    """The least workspace holds one piece that begins at a block and at a round of dealing."""
    assert PlanConfig(**PLAN | {"workspace_rows": 16}).workspace_rows == 16
    wide = PLAN | {"parallel": ContextParallel(4, 0, 8)}
    with pytest.raises(InvalidConfig, match="at least 32"):
        PlanConfig(**wide | {"workspace_rows": 31})
    assert PlanConfig(**wide | {"workspace_rows": 32}).workspace_rows == 32
