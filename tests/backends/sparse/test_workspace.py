"""The workspace plan: what is reserved is what is used, and no batch needs much less than it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mla_contract.backends.rocm_sparse.builder import RocmSparseBuilder
from mla_contract.backends.sparse.config import SparseConfig
from mla_contract.backends.sparse.indexer import SparseIndexer
from mla_contract.backends.sparse.workspace import (
    LocalWorkspace,
    gathered_rows,
    plan_workspace,
    take,
)
from mla_contract.contract.schema.provider import IndexerCacheFormat
from mla_contract.contract.schema.workspace import WorkspacePlan
from mla_contract.errors import InvalidContract
from mla_contract.runtime.check import check_metadata
from mla_contract.testing.corpus import conformance_batches, in_order
from tests.backends.reservations import workspace_trace
from tests.backends.sparse.steps import REFERENCE, SMALL, arrays_of, drawn, step_batch

CONFIGS = {
    "plain": replace(SMALL, max_model_len=8192),
    "multi": replace(SMALL, next_n=4),
    "native": replace(SMALL, next_n=4, native_decode=True),
    "one request": replace(SMALL, max_num_seqs=1, max_capture_size=1),
    "few tokens": replace(SMALL, max_num_seqs=64, max_num_batched_tokens=96, max_capture_size=0),
    "large graphs": replace(SMALL, max_num_seqs=8, max_capture_size=512),
    "tight budget": replace(SMALL, logits_bytes=64 << 10),
    "fp8 keys": replace(
        SMALL,
        index_format=IndexerCacheFormat(head_dim=128, fp8_dtype=torch.float8_e4m3fn),
        indexer_rows=1 << 18,
        max_model_len=1 << 15,
    ),
    "dense": replace(
        SMALL, max_model_len=128, indexer_rows=4096, dense_prefill=True, context_rows=4096, context_tokens=1 << 16
    ),
}
Lens = tuple[list[int], list[int]]


def corpus(config: SparseConfig) -> list[Lens]:
    """Return every batch of the corpus, and some drawn ones, that the configuration admits."""
    found = [drawn(seed, config.next_n) for seed in range(10)]
    for spec in conformance_batches().values():
        one = in_order(spec, config.next_n)
        found.append((list(one.query_lens), list(one.seq_lens)))
    return [one for one in found if admits(config, *one)]


def admits(config: SparseConfig, queries: list[int], totals: list[int]) -> bool:
    """Return whether an engine of this configuration may schedule such a batch."""
    live = sum(query > 0 for query in queries)
    within = sum(queries) <= config.max_num_batched_tokens and max(totals, default=0) <= config.max_model_len
    return within and live <= config.max_num_seqs and len(queries) <= max(config.max_num_seqs, config.max_capture_size)


def extremes(config: SparseConfig) -> list[Lens]:
    """Return the batches that need most: the widest chunk, all decodes or the largest graph, and all tokens."""
    length, shortest = config.max_model_len, config.next_n + 1
    found = []
    for count in range(1, min(config.max_num_seqs, config.max_num_batched_tokens // shortest) + 1):
        each = min(gathered_rows(config) // count, length)
        if each > shortest and (count == 1 or each * count * count * shortest <= config.logits_bytes // 4):
            found.append(([shortest] * count, [each] * count))
    widest = [max(found, key=lambda one: sum(one[1]))] if found else []
    decodes = min(config.max_num_seqs, config.max_num_batched_tokens // config.next_n)
    many = max(config.max_capture_size // config.next_n, decodes)
    rest = [config.max_num_batched_tokens] if config.max_num_batched_tokens <= length else [length]
    return [*widest, ([config.next_n] * many, [length] * many), (rest, rest)]


def needed(builder: RocmSparseBuilder, lens: Lens) -> int:
    """Return the bytes that one step uses of the arrays that it asks for."""
    config, parts = builder.config, plan_workspace(builder.config)
    metadata, indexer = builder.build_pair(step_batch(*lens, config))
    chunks = indexer.prefill.chunks if indexer.prefill is not None else []
    rows = {
        "prefill": max((chunk.total_seq_lens for chunk in chunks), default=0),
        "decode": 0 if indexer.decode is None else indexer.decode.seq_lens.numel(),
        "attention": metadata.num_kernel_rows,
    }
    return max(_cut(getattr(parts, name), count).total_bytes for name, count in rows.items())


def _cut(plan: WorkspacePlan, rows: int) -> WorkspacePlan:
    """Return the plan with fewer rows; a step that has more rows than were planned is an error."""
    assert all(rows <= one.shape[0] for one in plan.requests), (rows, plan)
    return WorkspacePlan(tuple(replace(one, shape=(rows, *one.shape[1:])) for one in plan.requests))


@pytest.mark.parametrize("name", CONFIGS)
def test_plan_workspace_every_batch_fits_and_the_largest_needs_most_of_it(name: str) -> None:
    """Over corpus, drawn and extreme batches: none needs more than is reserved, one needs at least 1/1.25 of it."""
    config = CONFIGS[name]
    builder = RocmSparseBuilder(config)
    needs = [needed(builder, lens) for lens in [*corpus(config), *extremes(config)]]
    reserved = plan_workspace(config).total_bytes
    assert max(needs) <= reserved <= 1.25 * max(needs)


@pytest.mark.parametrize("name", CONFIGS)
def test_indexer_run_without_metadata_reserves_what_steps_ask_for(name: str) -> None:
    """Profiling reserves; after the lock no step grows the workspace."""
    config, workspace = CONFIGS[name], LocalWorkspace()
    indexer, builder = SparseIndexer(config, workspace, REFERENCE), RocmSparseBuilder(config)
    nothing = arrays_of(step_batch((1,), (1,), config), config)
    indexer.run(nothing.inputs, None, nothing.topk)
    workspace.lock()
    reserved = workspace.num_bytes
    if config.index_format.fp8_dtype is None:
        for lens in (drawn(1, config.next_n, most=4), drawn(2, config.next_n, most=4)):
            if admits(config, *lens):
                of = step_batch(*lens, config)
                arrays = arrays_of(of, config)
                indexer.run(arrays.inputs, builder.build_pair(of)[1], arrays.topk)
    assert workspace.num_bytes == reserved == plan_workspace(config).total_bytes


def test_workspace_trace_less_or_much_more_is_a_breach() -> None:
    """Too few bytes break MLA401, far too many MLA402; the plan's own bytes break nothing."""
    config = CONFIGS["plain"]
    of = step_batch((1,), (8,), config)
    metadata = RocmSparseBuilder(config).build(of)
    total = plan_workspace(config).total_bytes
    for reserved, codes in ((total - 1, {"MLA401"}), (2 * total, {"MLA402"}), (total, set())):
        found = check_metadata(metadata, batch=of, trace=workspace_trace(config, reserved))
        assert {one.code for one in found} == codes


def test_local_workspace_locked_does_not_grow() -> None:
    """A request beyond the reservation is an error that names both sizes; the reserved request is served."""
    workspace, plan = LocalWorkspace(), plan_workspace(CONFIGS["plain"]).attention
    take(plan, workspace)
    workspace.lock()
    assert workspace.is_locked()
    with pytest.raises(InvalidContract, match="bytes wanted"):
        workspace.get_simultaneous(((workspace.num_bytes + 1,), torch.uint8))
    assert take(plan, workspace)["topk_slots"].shape[1] == CONFIGS["plain"].topk_tokens
