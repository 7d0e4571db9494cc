"""The configuration of a sparse backend is checked when it is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mla_contract.adapters.fault import InvalidConfig
from mla_contract.backends.sparse.config import SparseConfig

GOOD: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 100,
    "dense_prefill": True,
    "context_rows": 64,
    "context_tokens": 400,
}
AT_LEAST_ONE = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "topk_tokens", "next_n")

BAD = [
    *((name, value) for name in AT_LEAST_ONE for value in (0, -1, 1.0, True, "1")),
    *((name, 0) for name in ("num_heads", "width", "value_width", "index_heads", "max_split_per_batch")),
    *(("max_capture_size", value) for value in (-1, None)),
    *((name, "bfloat16") for name in ("q_dtype", "kv_dtype", "out_dtype")),
    ("value_width", 577),
    ("softmax_scale", 0.0),
    ("softmax_scale", float("nan")),
    ("indexer_rows", 99),
    ("compress_ratio", 4),
    ("next_n", 65),
    ("context_rows", None),
    ("context_rows", 63),
    ("context_tokens", 0),
    ("logits_bytes", 3),
    ("index_format", None),
    ("release", 0.32),
]


@pytest.mark.parametrize(("name", "bad"), BAD)
def test_setting_that_no_step_could_run_with_is_refused(name: str, bad: Any) -> None:
    """The error is a ValueError that names the setting; the same configuration without it is accepted."""
    assert SparseConfig(**GOOD).gather_rows == 100
    with pytest.raises(ValueError, match=name if name != "context_rows" else "(context|workspace)_rows") as caught:
        SparseConfig(**GOOD | {name: bad})
    assert isinstance(caught.value, InvalidConfig)


def test_contradictions_are_told_together() -> None:
    """Every setting that does not go with others is named at once."""
    with pytest.raises(InvalidConfig) as caught:
        SparseConfig(max_num_seqs=1, max_num_batched_tokens=64, max_model_len=100, dense_prefill=True, indexer_rows=64)
    assert [fault.what for fault in caught.value.faults] == [
        "SparseConfig.indexer_rows",
        "SparseConfig.context_rows",
        "SparseConfig.context_tokens",
    ]


def test_settings_at_their_bounds_are_accepted() -> None:
    """The least of everything is a configuration; so is a release that is not known, and a cache of another type."""
    least = SparseConfig(
        max_num_seqs=1,
        max_num_batched_tokens=1,
        max_model_len=1,
        block_size=1,
        topk_tokens=1,
        num_heads=1,
        width=1,
        value_width=1,
        indexer_rows=1,
        kv_dtype=torch.float16,
        release=None,
    )
    assert least.flat_plan.release is None
    assert least.capacity.max_num_seqs == 1
