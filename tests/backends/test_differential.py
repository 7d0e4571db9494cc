"""Two backends lower one plan: every shared field, every selection and every output must be equal."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from mla_contract.backends.sparse.config import SparseConfig
from mla_contract.backends.sparse.metadata import SparseRecord
from mla_contract.backends.sparse.workspace import LocalWorkspace
from mla_contract.contract.clauses.clause import Level
from mla_contract.runtime.check import check_metadata
from mla_contract.testing.corpus import conformance_batches, in_order
from mla_contract.testing.records import PlainBatch
from tests.adapters.scenarios import BATCHES
from tests.backends.sparse.steps import REFERENCE, SMALL, arrays_of, drawn, step_batch, token_padded
from tests.backends.whole import WholeCudaSparse, WholeRocmSparse

DENSE = replace(SMALL, dense_prefill=True, context_rows=8192, context_tokens=1 << 20)
CONFIGS = {"plain": SMALL, "native": replace(SMALL, native_decode=True, next_n=4), "dense": DENSE}
MOST_TOKENS = 300
"""Outputs are computed for batches of up to this many tokens, records are compared for all."""


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Return the paths at which two records differ: values, presence, shapes, element types or elements."""
    if isinstance(ours, torch.Tensor):
        same = isinstance(theirs, torch.Tensor) and ours.dtype is theirs.dtype and torch.equal(ours, theirs)
        return [] if same else [path]
    if isinstance(ours, list):
        if len(ours) != len(theirs):
            return [f"{path}: {len(ours)} or {len(theirs)}"]
        return [
            one
            for index, (a, b) in enumerate(zip(ours, theirs, strict=True))
            for one in differences(a, b, f"{path}[{index}]")
        ]
    if hasattr(ours, "__dataclass_fields__"):
        names = [one.name for one in fields(ours)]
        return [
            one for name in names for one in differences(getattr(ours, name), getattr(theirs, name), f"{path}.{name}")
        ]
    return [] if ours == theirs else [path]


def shared(record: SparseRecord) -> SparseRecord:
    """Return the fields that both backends have."""
    return SparseRecord(**{one.name: getattr(record, one.name) for one in fields(SparseRecord)})


def pair(config: SparseConfig) -> tuple[WholeRocmSparse, WholeCudaSparse]:
    """Return both backends, profiled and locked."""
    made = []
    for cls in (WholeRocmSparse, WholeCudaSparse):
        workspace = LocalWorkspace()
        one = cls(config, workspace, providers=REFERENCE)
        one.profile()
        workspace.lock()
        made.append(one)
    return made[0], made[1]  # type: ignore[return-value]


def compare(rocm: WholeRocmSparse, cuda: WholeCudaSparse, of: PlainBatch) -> None:
    """Assert that both backends agree about a batch, and keep the contract."""
    config = rocm.config
    (ours, our_indexer), (theirs, their_indexer) = rocm.builder.build_pair(of), cuda.builder.build_pair(of)
    assert differences(shared(ours), shared(theirs)) == []
    assert differences(our_indexer, their_indexer) == []
    for made, record in ((rocm, ours), (cuda, theirs), (rocm, our_indexer)):
        known = {"batch": of, "declaration": made.declaration, "facts": config.facts}
        assert check_metadata(record, **known, level=Level.VALUES) == ()  # type: ignore[arg-type]
    if of.num_actual_tokens > MOST_TOKENS:
        return
    results = []
    for made, record, indexer in ((rocm, ours, our_indexer), (cuda, theirs, their_indexer)):
        arrays = arrays_of(of, config)
        made.indexer.run(arrays.inputs, indexer, arrays.topk)
        rows = record.num_kernel_rows
        lse = torch.zeros(rows, config.num_heads)
        out = made.attention.forward_mqa(arrays.q[:rows], arrays.kv_cache, arrays.topk, record, lse=lse)  # type: ignore[arg-type]
        results.append((arrays.topk, out, lse))
    assert torch.equal(results[0][0], results[1][0])
    for ours_, theirs_ in zip(results[0][1:], results[1][1:], strict=True):
        torch.testing.assert_close(ours_, theirs_, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("config", CONFIGS)
def test_backends_corpus_agree_on_every_shared_field_and_output(config: str) -> None:
    """Every batch of the corpus and of the scenario table, in the engine's order."""
    chosen = CONFIGS[config]
    rocm, cuda = pair(chosen)
    for spec in conformance_batches().values():
        one = in_order(spec, chosen.next_n)
        if sum(one.query_lens) <= chosen.max_num_batched_tokens and max(one.seq_lens) <= chosen.max_model_len:
            of = step_batch(one.query_lens, one.seq_lens, chosen)
            compare(rocm, cuda, token_padded(of, one.num_actual_tokens or of.num_actual_tokens))
    named = {name.removesuffix("_padded") for name in conformance_batches()}
    assert set(BATCHES) <= named


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("seed", range(10))
def test_backends_drawn_batches_agree_on_every_shared_field_and_output(seed: int, config: str) -> None:
    """Random batches."""
    chosen = CONFIGS[config]
    rocm, cuda = pair(chosen)
    compare(rocm, cuda, step_batch(*drawn(100 + seed, chosen.next_n), chosen))


def test_differences_planted_are_found() -> None:
    """A changed element, count or presence is told by its path; equal records differ nowhere."""
    rocm, cuda = pair(SMALL)
    of = step_batch((1, 5), (40, 60))
    ours, theirs = shared(rocm.builder.build(of)), shared(cuda.builder.build(of))
    assert differences(ours, theirs) == []
    theirs.req_id_per_token = theirs.req_id_per_token.clone()
    theirs.req_id_per_token[3] = 0
    theirs.num_decode_tokens += 1
    assert differences(ours, theirs) == [".num_decode_tokens", ".req_id_per_token"]
