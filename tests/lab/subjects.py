"""Small legal subjects in which faults are planted: one batch of decodes, extends and fresh prefills in many forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.plan import PlanConfig
from mla_contract.contract.schema.declaration import BackendDeclaration, Routing
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.trace import BuildTrace, Call, Child, Lane, Reuse, Slices, Workspace, addresses_of
from mla_contract.testing import records
from mla_contract.testing.context_records import tensor
from mla_contract.testing.lowering import LoweredKind, Setup, build
from mla_contract.testing.random_batches import Row, shape_of
from tests.lab.decode_records import PlainPagedDecode, PlainSplitDecode

BLOCK, TOPK = 4, 8
MIXED = ((2, 7), (2, 4), (5, 7), (3, 8), (4, 0))
"""Rows as (new, cached) tokens: two decodes, two extends, one fresh prompt."""
INDEXED = ((2, 7), (2, 4), (3, 8), (3, 1), (8, 10))
"""Two decodes; two extends whose keys are gathered together; one whose query rows take two chunks."""
PADDED = ((2, 7), (2, 4), (0, 0), (0, 0))
SHARED = BackendDeclaration(name="shared", routing=Routing.SHARED_SPLIT, dense_prefill=True, decode_lse=False)
ALL_DECODES = BackendDeclaration(name="all", routing=Routing.ALL_DECODES, dense_prefill=False, decode_lse=False)
DCP = ContextParallel(2, 1, 2)

_LIMITS: dict[str, Any] = {
    "num_blocks": 100,
    "row_stride": 10,
    "wide_addresses": False,
    "dummy": False,
    "max_num_seqs": 8,
    "max_capture_size": 8,
    "next_n": 2,
    "buffer_rows": 16,
    "schedule_clamped": False,
    "schedule_rows": 8,
    "pinned_sources": False,
    "gather_kind": "copy",
    "cache_dtype": "float32",
    "topk_skipped": False,
}


def config_of(kind: LoweredKind, **options: Any) -> PlanConfig:
    """Return a configuration in which contexts are split, and the indexer's prefills take several chunks."""
    chosen: dict[str, Any] = {"block_size": BLOCK, "decode_threshold": 2}
    if kind is LoweredKind.INDEXER:
        chosen |= {"indexer_states": 24, "logits_bytes": 368}
    else:
        chosen["workspace_rows"] = 12
    if kind in (LoweredKind.SPARSE, LoweredKind.AITER):
        chosen["topk_tokens"] = TOPK
    return PlanConfig(**chosen | options)


def make_subject(kind: LoweredKind, rows: Sequence[tuple[int, int]] = MIXED, **options: Any) -> StepContext:
    """Return a legal subject.

    Args:
        kind: The record.
        rows: New and cached tokens of each request.
        **options: Options of the plan, over those of ``config_of``.
    """
    setup = Setup(kind=kind, config=config_of(kind, **options))
    batch, metadata = build(shape_of([Row(*row) for row in rows], setup.config), setup)
    facts = replace(setup.facts(), **_LIMITS)
    return StepContext(metadata=metadata, batch=batch, facts=facts, declaration=SHARED)


def _of(kind: LoweredKind, rows: Sequence[tuple[int, int]] = MIXED, **options: Any) -> Callable[[], StepContext]:
    return lambda: make_subject(kind, rows, **options)


BASES: Mapping[str, Callable[[], StepContext]] = {
    "dense": _of(LoweredKind.DENSE),
    "dense, context lists": _of(LoweredKind.DENSE, release="0.27", workspace_rows=8),
    "dense, DCP": _of(LoweredKind.DENSE, parallel=DCP),
    "sparse": _of(LoweredKind.SPARSE),
    "aiter": _of(LoweredKind.AITER),
    "indexer": _of(LoweredKind.INDEXER, INDEXED),
    "indexer, DCP": _of(LoweredKind.INDEXER, INDEXED, parallel=DCP),
}
"""Subjects whose every field gets mechanical faults."""

padded = _of(LoweredKind.DENSE, PADDED)
states_indexer = _of(LoweredKind.INDEXER, INDEXED, parallel=ContextParallel(2, 1, 4), compress_ratio=2)
padded_indexer = _of(LoweredKind.INDEXER, ((2, 7), (1, 4), (0, 0), (0, 0), (0, 0)), flatten_decodes=True)


def splits() -> StepContext:
    """Return a padded batch whose decode record has a split schedule."""
    made = padded()
    old = made.metadata.decode
    made.metadata.decode = PlainSplitDecode(old.block_table, old.seq_lens, None, tensor(np.arange(5)))
    return replace(made)


def pages() -> StepContext:
    """Return two decodes whose record has paged tables."""
    made = make_subject(LoweredKind.DENSE, ((1, 8), (1, 3)))
    old = made.metadata.decode
    made.metadata.decode = PlainPagedDecode(old.block_table, old.seq_lens, None, tensor([0, 3, 4]), tensor([1, 4]))
    return replace(made)


def all_decodes() -> StepContext:
    """Return sparse metadata of a backend that declares all tokens decodes."""
    made = replace(make_subject(LoweredKind.SPARSE), declaration=ALL_DECODES)
    data = made.metadata
    data.num_decodes, data.num_prefills, data.num_decode_tokens = made.batch.num_reqs, 0, made.batch.num_actual_tokens
    data.prefill, data.prefill_max_seq_len, data.decode_max_query_len = None, 0, made.batch.max_query_len
    return replace(made)


def dummy() -> StepContext:
    """Return a dummy step: no slot, no position."""
    made = make_subject(LoweredKind.DENSE, ((1, 0), (1, 0)))
    made.batch.slot_mapping = made.metadata.slot_mapping = tensor([-1, -1], "int64")
    made.batch.positions = tensor([0, 0], "int64")
    return replace(made, facts=replace(made.facts, dummy=True))


def round_robin() -> StepContext:
    """Return a batch whose local rows are every second position."""
    made = make_subject(LoweredKind.DENSE, ((3, 2),))
    made.batch.positions = tensor([0, 2, 4], "int64")
    return replace(made, facts=replace(made.facts, pcp_size=2))


def flagged() -> StepContext:
    """Return a batch that says which requests compute a prompt."""
    made = make_subject(LoweredKind.DENSE)
    made.batch.is_prefilling = tensor([False, False, True, True, True], "bool")
    return replace(made, facts=replace(made.facts, short_extends_are_decodes=False))


def two_layers() -> StepContext:
    """Return MLA metadata with the indexer's record of its layer."""
    return replace(
        make_subject(LoweredKind.SPARSE),
        trace=BuildTrace(indexer=make_subject(LoweredKind.INDEXER).metadata, generation=(7, 7)),
    )


def captured() -> StepContext:
    """Return metadata whose arrays a captured graph reads."""
    made = make_subject(LoweredKind.SPARSE)
    names = ("block_table", "req_id_per_token", "seq_lens", "query_start_loc", "slot_mapping")
    return replace(made, trace=BuildTrace(captured=addresses_of(made.metadata, names)))


def two_steps() -> StepContext:
    """Return two metadata objects that are alive together."""
    return replace(make_subject(LoweredKind.DENSE), trace=BuildTrace(alive=(make_subject(LoweredKind.DENSE).metadata,)))


def micro_batches() -> StepContext:
    """Return a batch cut into two micro-batches behind its third request."""
    made = flagged()
    batch, cut = made.batch, 3
    tokens = int(batch.query_start_loc_cpu[cut])
    ranges = ((slice(0, cut), slice(0, tokens)), (slice(cut, 5), slice(tokens, batch.num_actual_tokens)))
    children = tuple(Child(_child(batch, requests, own), requests, own) for requests, own in ranges)
    return replace(made, trace=BuildTrace(slices=Slices(batch, children)))


def _child(batch: records.PlainBatch, requests: slice, tokens: slice) -> records.PlainBatch:
    offsets = slice(requests.start, requests.stop + 1)
    flags, positions, upper = batch.is_prefilling, batch.positions, batch.seq_lens_cpu_upper_bound
    return replace(
        batch,
        query_start_loc=batch.query_start_loc[offsets] - batch.query_start_loc[requests.start],
        query_start_loc_cpu=batch.query_start_loc_cpu[offsets] - batch.query_start_loc_cpu[requests.start],
        seq_lens=batch.seq_lens[requests],
        num_reqs=requests.stop - requests.start,
        num_actual_tokens=tokens.stop - tokens.start,
        block_table_tensor=batch.block_table_tensor[requests],
        slot_mapping=batch.slot_mapping[tokens],
        positions=None if positions is None else positions[tokens],
        is_prefilling=None if flags is None else flags[requests],
        seq_lens_cpu_upper_bound=None if upper is None else upper[requests],
    )


FIRST, SECOND = Lane(0, "decode"), Lane(1, "decode")
SPACE = Workspace(
    reserved_bytes={FIRST: 1024, SECOND: 1024},
    needed_bytes={FIRST: 1000, SECOND: 1000},
    rows=128,
    alignment=64,
    captured_slots=frozenset({FIRST}),
    eager_slots=frozenset({Lane(0, "eager")}),
    sites=frozenset({"gather"}),
    planned_sites=frozenset({"gather", "logits"}),
)
INPUTS: Mapping[str, object] = {
    "ubatch": 0,
    "layer_group": 0,
    "token_kv_lens": (1, 2, 3, 4),
    "query_lens": (4,),
    "num_heads": 16,
    "q_dtype": "bfloat16",
    "kv_dtype": "bfloat16",
    "page_size": 1,
    "padded_batch": 4,
}
ARGUMENTS: Mapping[str, object] = {"num_heads": 16, "max_query_len": 2, "kv_dtype": "float8", "page_size": 1, "rows": 8}


def space() -> StepContext:
    """Return reservations alone."""
    return StepContext(trace=BuildTrace(workspace=SPACE))


def reuse() -> StepContext:
    """Return a schedule taken from a cache, its inputs unchanged."""
    return StepContext(trace=BuildTrace(reuse=(Reuse("work", INPUTS, dict(INPUTS)),)))


def calls() -> StepContext:
    """Return the size, fill and kernel calls of one family."""
    made = tuple(Call(name, dict(ARGUMENTS)) for name in ("size", "fill", "kernel"))
    return StepContext(trace=BuildTrace(calls=made))
