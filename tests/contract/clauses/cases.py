"""For each clause a batch that holds, and a change that breaks it: the table that tests and docs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mla_contract.contract.schema.declaration import BackendDeclaration, Routing
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.facts import Facts
from mla_contract.contract.step.trace import (
    BuildTrace,
    Call,
    Child,
    DeviceRead,
    Lane,
    PlannedWork,
    Reuse,
    Slices,
    Workspace,
    addresses_of,
)
from mla_contract.testing.records import PlainAiter
from tests.contract.clauses import records
from tests.contract.clauses.records import ints
from tests.lab import layer_records
from tests.lab.decode_records import PlainPagedDecode, PlainSplitDecode

QUERIES, LENS, DECODES = (2, 2, 5, 3, 4), (9, 6, 12, 11, 4), 2

PLAIN = Facts(
    kernel_block_size=records.BLOCK,
    num_blocks=100,
    row_stride=10,
    wide_addresses=False,
    decode_threshold=2,
    short_extends_are_decodes=False,
    capturing=False,
    dummy=False,
    max_num_seqs=8,
    max_capture_size=8,
    next_n=2,
    buffer_rows=16,
    context_rows=32,
    gather_by_page=True,
    indexer_rows=100,
    logits_budget_bytes=10_000,
    schedule_clamped=False,
    schedule_rows=8,
)
DCP = replace(PLAIN, dcp_size=2, dcp_rank=1, dcp_interleave=2)
SHARED = BackendDeclaration(name="shared", routing=Routing.SHARED_SPLIT, dense_prefill=True, decode_lse=False)
ALL_DECODES = BackendDeclaration(name="all", routing=Routing.ALL_DECODES, dense_prefill=False, decode_lse=False)
MAKERS: Mapping[str, Callable[..., Any]] = {
    "dense": records.dense,
    "sparse": records.sparse,
    "aiter": records.aiter,
    "indexer": records.indexer,
}


def subject(
    kind: str = "sparse",
    facts: Facts = PLAIN,
    queries: Sequence[int] = QUERIES,
    lens: Sequence[int] = LENS,
    decodes: int = DECODES,
    *,
    declaration: BackendDeclaration | None = None,
    prefilling: Sequence[bool] | None = None,
    **shape: Any,
) -> StepContext:
    """Return a consistent subject: a batch, and the metadata of one kind built of it."""
    block = facts.kernel_block_size or records.BLOCK
    batch = records.batch(queries, lens, facts=facts, block=block, prefilling=prefilling)
    metadata = MAKERS[kind](batch, decodes, facts, **shape)
    return StepContext(metadata=metadata, batch=batch, facts=facts, declaration=declaration)


def with_facts(of: StepContext, **changes: Any) -> StepContext:
    """Return a subject with other facts."""
    return replace(of, facts=replace(of.facts, **changes))


def with_trace(of: StepContext, **changes: Any) -> StepContext:
    """Return a subject with other trace."""
    return replace(of, trace=replace(of.trace, **changes))


Change = Callable[[StepContext], StepContext | None]


@dataclass(frozen=True)
class Case:
    """A subject that holds, and the change that breaks one clause."""

    good: Callable[[], StepContext]
    change: Change

    def bad(self) -> StepContext:
        """Return the broken subject."""
        made = self.good()
        return replace(self.change(made) or made)  # a context is what its records were when it was made


def put(path: str, value: Any) -> Change:
    """Return the change that sets a field, given by its path from the subject; a callable gets the old value."""
    *parents, name = path.split(".")

    def change(of: StepContext) -> None:
        target: Any = of
        for part in parents:
            target = target[int(part)] if part.isdigit() else getattr(target, part)
        setattr(target, name, value(getattr(target, name)) if callable(value) else value)

    return change


def poke(path: str, index: Any, value: int) -> Change:
    """Return the change that sets one element of a copy of an array."""

    def written(old: torch.Tensor) -> torch.Tensor:
        new = old.clone()
        new[index] = value
        return new

    return put(path, written)


def fact(**changes: Any) -> Change:
    """Return the change of some facts."""
    return lambda of: with_facts(of, **changes)


def proof(**changes: Any) -> Change:
    """Return the change of some trace."""
    return lambda of: with_trace(of, **changes)


def _padded() -> StepContext:
    """Return a padded decode batch: two live requests, two padding requests."""
    return subject("dense", queries=(2, 2, 0, 0), lens=(9, 6, 0, 0), decodes=4)


def _dcp(kind: str, **shape: Any) -> Callable[[], StepContext]:
    return lambda: subject(kind, DCP, **shape)


def _kind(kind: str, **shape: Any) -> Callable[[], StepContext]:
    return lambda: subject(kind, **shape)


def _fields() -> StepContext:
    """Return dense metadata with chunked context in the shape up to 0.27."""
    made = subject("dense")
    made.metadata.prefill.chunked_context = records.field_context(made.batch, DECODES, 4)
    return with_facts(made, context_rows=None)


def _round_robin() -> StepContext:
    """Return a batch whose local rows are every second position."""
    made = with_facts(subject(queries=(3,), lens=(5,), decodes=0), pcp_size=2)
    made.batch.positions = torch.tensor([0, 2, 4])
    return replace(made)


def _dummy() -> StepContext:
    made = with_facts(subject("dense", queries=(1, 1), lens=(1, 1), decodes=2), dummy=True)
    made.batch.slot_mapping = made.metadata.slot_mapping = torch.full((2,), -1)
    made.batch.positions = torch.zeros(2, dtype=torch.int64)
    return replace(made)


def _sliced() -> StepContext:
    """Return a subject whose batch is cut behind its third request."""
    made = subject("dense")
    batch, cut, tokens = made.batch, 3, int(made.batch.query_start_loc_cpu[3])
    batch.is_prefilling = torch.tensor([False, False, True, True, True])
    children = []
    for requests, own in (
        (slice(0, cut), slice(0, tokens)),
        (slice(cut, batch.num_reqs), slice(tokens, batch.num_actual_tokens)),
    ):
        offsets = slice(requests.start, requests.stop + 1)
        child = replace(
            batch,
            query_start_loc=batch.query_start_loc[offsets] - batch.query_start_loc[requests.start],
            query_start_loc_cpu=batch.query_start_loc_cpu[offsets] - batch.query_start_loc_cpu[requests.start],
            seq_lens=batch.seq_lens[requests],
            num_reqs=requests.stop - requests.start,
            num_actual_tokens=own.stop - own.start,
            block_table_tensor=batch.block_table_tensor[requests],
            slot_mapping=batch.slot_mapping[own],
            positions=batch.positions[own],
            is_prefilling=batch.is_prefilling[requests],
            seq_lens_cpu_upper_bound=batch.seq_lens_cpu_upper_bound[requests],
        )
        children.append(Child(child, requests, own))
    return with_trace(made, slices=Slices(batch, tuple(children)))


def _child(change: Callable[[Any], None]) -> Change:
    def apply(of: StepContext) -> None:
        assert of.trace.slices is not None
        change(of.trace.slices.children[1].batch)

    return apply


def _named(name: str, value: Any) -> Callable[[Any], None]:
    return lambda batch: setattr(batch, name, value(getattr(batch, name)) if callable(value) else value)


SLOT, OTHER = Lane(0, "decode"), Lane(1, "decode")
SPACE = Workspace(
    reserved_bytes={SLOT: 1024, OTHER: 1024},
    needed_bytes={SLOT: 1000, OTHER: 1000},
    rows=128,
    alignment=64,
    captured_slots=frozenset({SLOT}),
    eager_slots=frozenset({Lane(0, "eager")}),
    sites=frozenset({"gather"}),
    planned_sites=frozenset({"gather", "logits"}),
)
INPUTS = {"token_kv_lens": (1, 2, 3, 4, 4, 4, 4, 4), "query_lens": (8,), "num_heads": 16, "ubatch": 0}


def _space() -> StepContext:
    return StepContext(trace=BuildTrace(workspace=SPACE))


def _calls(*calls: Call) -> Callable[[], StepContext]:
    return lambda: StepContext(trace=BuildTrace(calls=calls))


def _reuse() -> StepContext:
    return StepContext(trace=BuildTrace(reuse=(Reuse("work", INPUTS, dict(INPUTS)),)))


def _captured() -> StepContext:
    made = subject()
    return with_trace(made, captured=addresses_of(made.metadata, ("block_table",)))


def _alive() -> StepContext:
    return with_trace(subject(), alive=(subject().metadata,))


def _share(of: StepContext) -> None:
    assert of.trace.alive is not None
    of.metadata.prefill = of.trace.alive[0].prefill


def _splits() -> StepContext:
    made = _padded()
    old = made.metadata.decode
    made.metadata.decode = PlainSplitDecode(old.block_table, old.seq_lens, None, num_splits=ints(range(5)))
    return replace(made)


def _pages() -> StepContext:
    made = subject("dense", queries=(1, 1), lens=(9, 4), decodes=2)
    old = made.metadata.decode
    made.metadata.decode = PlainPagedDecode(
        old.block_table, old.seq_lens, None, paged_kv_indptr=ints([0, 3, 4]), paged_kv_last_page_len=ints([1, 4])
    )
    return replace(made)


def _all_decodes() -> StepContext:
    made = subject(declaration=ALL_DECODES, decodes=5)
    made.metadata.decode_max_query_len = 5
    return replace(made)


@dataclass
class Work:
    """The six buffers of a plan."""

    work_meta_data: torch.Tensor
    work_indptr: torch.Tensor
    work_info_set: torch.Tensor
    reduce_indptr: torch.Tensor
    reduce_final_map: torch.Tensor
    reduce_partial_map: torch.Tensor


def _planned() -> StepContext:
    """Return the plan of a whole row of 16 and of a row of 32 that two units share."""
    units = ints([0, 2, 3])
    items = ints([[0, -1, 0, 1, 0, 16, 0, 0], [1, 0, 1, 2, 16, 32, 16, 0], [1, 1, 1, 2, 32, 48, 0, 0]])
    pointers = torch.tensor([units.data_ptr(), items.data_ptr()])
    work = Work(pointers, units, items, ints([0, 0, 2]), ints([[0, 1], [1, 2]]), ints([0, 1]))
    return StepContext(trace=BuildTrace(planned_work=PlannedWork(work, ints([0, 16, 48]))))


def _buffer(name: str, index: Any, value: int) -> Change:
    return poke(f"trace.planned_work.buffers.{name}", index, value)


def _replanned(of: StepContext) -> StepContext:
    assert of.trace.planned_work is not None
    return with_trace(of, planned_work=replace(of.trace.planned_work, kv_indptr=ints([0, 16, 16])))


CONTEXT = "metadata.prefill.chunked_context"
SPLIT = {"split": 4}
CUTS = {"cuts": (4, 8)}
LONG = {"queries": (1, 1, 8), "lens": (5, 6, 16), "decodes": 2}

CASES: dict[str, Case] = {
    "MLA201": Case(_kind("dense"), poke("batch.query_start_loc_cpu", 1, 5)),
    "MLA202": Case(_kind("dense"), put("batch.num_actual_tokens", 15)),
    "MLA203": Case(_padded, put("batch.query_start_loc_cpu", ints([0, 2, 4, 12, 20]))),
    "MLA204": Case(_kind("dense"), poke("batch.seq_lens_cpu_upper_bound", 2, 4)),
    "MLA205": Case(_kind("dense"), put("batch.max_query_len", 4)),
    "MLA206": Case(lambda: with_facts(subject("dense"), next_n=1), put("batch.max_seq_len", 8192)),
    "MLA207": Case(_kind("dense"), put("batch.block_table_tensor", lambda old: old[:, :2])),
    "MLA208": Case(_kind("dense"), put("batch.slot_mapping", lambda old: old[:-1])),
    "MLA209": Case(_kind("dense"), put("batch.seq_lens_cpu_upper_bound", None)),
    "MLA210": Case(
        lambda: subject("dense", prefilling=(False, False, True, True, True)),
        put("batch.is_prefilling", lambda old: old[:3]),
    ),
    "MLA211": Case(_kind("dense"), poke("batch.query_start_loc", 1, 1)),
    "MLA212": Case(_padded, poke("batch.seq_lens", 3, 7)),
    "MLA213": Case(_kind("dense"), poke("batch.seq_lens", 0, 13)),
    "MLA214": Case(_kind("dense"), poke("batch.seq_lens", 0, 10)),
    "MLA215": Case(_dummy, poke("batch.positions", 0, 116)),
    "MLA216": Case(_round_robin, put("batch.positions", torch.tensor([0, 1, 2]))),
    "MLA217": Case(_kind("dense"), poke("batch.positions", 1, 7)),
    "MLA218": Case(_dcp("dense"), put("batch.dcp_local_seq_lens", lambda old: old + 1)),
    "MLA221": Case(_kind("dense"), lambda of: poke("batch.slot_mapping", 1, int(of.batch.slot_mapping[0]))(of)),
    "MLA222": Case(_dcp("dense"), put("batch.slot_mapping", lambda old: torch.where(old == old.max(), -1, old))),
    "MLA223": Case(_kind("dense"), poke("batch.block_table_tensor", (0, 2), -1)),
    "MLA224": Case(lambda: with_facts(_padded(), next_n=1), poke("batch.block_table_tensor", (3, 0), 7)),
    "MLA225": Case(_kind("dense"), poke("batch.slot_mapping", 0, 399)),
    "MLA226": Case(_kind("dense"), fact(row_stride=2**30)),
    "MLA231": Case(
        lambda: subject("dense", replace(PLAIN, decode_threshold=1, next_n=1), (1, 1, 5, 3), (40, 30, 60, 9), 2),
        lambda of: subject("dense", of.facts, (1, 5, 1, 3), (40, 60, 30, 9), 1),
    ),
    "MLA232": Case(_kind("sparse"), put("metadata.num_prefills", 0)),
    "MLA233": Case(_kind("sparse"), put("metadata.num_decode_tokens", 5)),
    "MLA234": Case(_kind("dense"), put("metadata.num_decodes", 3)),
    "MLA235": Case(
        _kind("dense", queries=(2, 4), lens=(9, 4), decodes=1),
        lambda of: subject("dense", replace(PLAIN, decode_threshold=4), (2, 4), (9, 4), 2),
    ),
    "MLA236": Case(_padded, lambda of: subject("dense", queries=(2, 2, 0, 0), lens=(9, 6, 0, 0), decodes=2)),
    "MLA237": Case(_kind("dense", declaration=SHARED), lambda of: subject("dense", declaration=SHARED, decodes=1)),
    "MLA241": Case(_kind("dense"), put("metadata.decode", None)),
    "MLA242": Case(_kind("sparse"), put("metadata.prefill_max_seq_len", 0)),
    "MLA243": Case(_kind("sparse"), put("metadata.decode_max_query_len", 0)),
    "MLA244": Case(_kind("dense"), put("metadata.num_actual_tokens", 12)),
    "MLA245": Case(
        lambda: with_trace(subject(), indexer=subject("indexer").metadata),
        lambda of: with_trace(of, indexer=subject("indexer", decodes=1).metadata),
    ),
    "MLA246": Case(_alive, _share),
    "MLA247": Case(_captured, put("metadata.block_table", lambda old: old.clone())),
    "MLA248": Case(
        lambda: with_trace(subject("aiter"), metadata_class=PlainAiter),
        lambda of: with_trace(subject("sparse"), metadata_class=PlainAiter),
    ),
    "MLA249": Case(lambda: with_facts(subject(), topk_skipped=False), fact(topk_skipped=True)),
    "MLA251": Case(
        lambda: with_facts(subject("aiter", queries=(1, 3), lens=(9, 3), decodes=1), query_rows=4), fact(query_rows=1)
    ),
    "MLA252": Case(_all_decodes, put("metadata.num_decodes", 2)),
    "MLA253": Case(_kind("sparse"), poke("metadata.req_id_per_token", 2, 0)),
    "MLA254": Case(lambda: with_facts(subject(), topk_rank=3, topk_shape=(4, 1, 8)), fact(topk_shape=(4, 8))),
    "MLA255": Case(_kind("sparse"), put("metadata.block_table", lambda old: old * 0)),
    "MLA257": Case(_kind("sparse"), put("batch.causal", False)),
    "MLA261": Case(_kind("dense"), put("metadata.prefill.max_query_len", 4)),
    "MLA262": Case(_kind("sparse"), poke("metadata.prefill.query_lens_cpu", 0, 1)),
    "MLA263": Case(_kind("dense"), put("metadata.prefill.query_start_loc", lambda old: old + 4)),
    "MLA264": Case(_kind("dense"), put("metadata.prefill.block_table", lambda old: old.flip(0))),
    "MLA291": Case(_planned, _replanned),
    "MLA292": Case(_planned, _buffer("work_indptr", 1, 4)),
    "MLA293": Case(_planned, _buffer("work_info_set", (2, 5), 40)),
    "MLA294": Case(_planned, _buffer("work_info_set", (2, 3), 3)),
    "MLA295": Case(_planned, _buffer("reduce_indptr", 2, 0)),
    "MLA296": Case(_planned, _buffer("work_info_set", (2, 1), 0)),
    "MLA297": Case(_planned, _buffer("work_indptr", 1, 1)),
    "MLA298": Case(_planned, put("trace.planned_work.buffers.work_info_set", lambda old: old.clone())),
    "MLA301": Case(_kind("dense"), put(CONTEXT, None)),
    "MLA302": Case(_kind("dense", **SPLIT), put(f"{CONTEXT}.chunks", lambda old: old[:-1])),
    "MLA303": Case(_kind("dense", **SPLIT), lambda of: subject("dense", split=3)),
    "MLA304": Case(_kind("dense"), fact(context_rows=6)),
    "MLA305": Case(_kind("dense"), put(f"{CONTEXT}.chunks.0.max_seq_len", 8)),
    "MLA306": Case(_fields, put(f"{CONTEXT}.has_empty_context", lambda old: [False] * len(old))),
    "MLA307": Case(_dcp("dense", **SPLIT), put(f"{CONTEXT}.chunks.0.padded_local_seq_lens", [5])),
    "MLA308": Case(_kind("dense"), put("metadata.prefill.block_table", lambda old: old[:, :1])),
    "MLA309": Case(_kind("dense"), put(f"{CONTEXT}.chunks.1.token_slice", slice(5, 12))),
    "MLA310": Case(lambda: with_facts(subject("dense"), pinned_sources=False), fact(pinned_sources=True)),
    "MLA311": Case(
        lambda: with_facts(subject("dense"), gather_kind="copy", cache_dtype="float32"),
        fact(cache_dtype="float8_e4m3fn"),
    ),
    "MLA312": Case(_kind("dense", **SPLIT), put(f"{CONTEXT}.chunks.1.index", 0)),
    "MLA313": Case(_kind("dense", **SPLIT), put(f"{CONTEXT}.chunks.1.is_continuation", False)),
    "MLA314": Case(_dcp("dense", **SPLIT), put(f"{CONTEXT}.chunks.1.local_starts", [4])),
    "MLA321": Case(_kind("dense", **SPLIT), poke(f"{CONTEXT}.chunks.1.starts", 0, 3)),
    "MLA322": Case(_kind("dense"), poke(f"{CONTEXT}.chunks.0.cu_seq_lens", 1, 6)),
    "MLA323": Case(_kind("dense"), poke(f"{CONTEXT}.chunks.0.query_start_loc", 1, 4)),
    "MLA324": Case(_kind("dense"), poke(f"{CONTEXT}.context_lens", 0, 6)),
    "MLA325": Case(_dcp("dense"), poke(f"{CONTEXT}.chunks.0.padded_local_token_to_seq", 1, 1)),
    "MLA331": Case(_kind("dense"), put("metadata.decode.seq_lens", lambda old: old[:1])),
    "MLA332": Case(_splits, put("metadata.decode.num_splits", ints(range(3)))),
    "MLA333": Case(_padded, poke("metadata.decode.seq_lens", 3, -1)),
    "MLA334": Case(_dcp("dense"), lambda of: put("metadata.decode.dcp_tot_seq_lens", of.metadata.decode.seq_lens)(of)),
    "MLA335": Case(_kind("dense"), put("metadata.decode.block_table", lambda old: old.flip(0))),
    "MLA341": Case(_kind("indexer"), put("metadata.num_prefill_tokens", 11)),
    "MLA342": Case(_kind("indexer"), put("metadata.decode", None)),
    "MLA343": Case(_kind("indexer"), put("metadata.decode.decode_lens", lambda old: old[:1])),
    "MLA344": Case(_kind("indexer", queries=(1,) * 6, lens=(5,) * 6, decodes=6), put("metadata.num_decode_tokens", 8)),
    "MLA345": Case(_kind("indexer"), fact(max_capture_size=32)),
    "MLA346": Case(lambda: with_facts(subject("indexer"), topk_rows=4), fact(topk_rows=5)),
    "MLA347": Case(_kind("indexer"), poke("metadata.decode.decode_lens", 1, 8)),
    "MLA348": Case(
        _kind("indexer", queries=(2, 0), lens=(9, 0), decodes=2), poke("metadata.decode.seq_lens", (1, 0), -1)
    ),
    "MLA349": Case(_kind("indexer"), put("metadata.decode.seq_lens", torch.zeros_like)),
    "MLA350": Case(_dcp("indexer"), lambda of: put("metadata.decode.global_seq_lens", of.metadata.decode.seq_lens)(of)),
    "MLA351": Case(_kind("indexer"), put("metadata.seq_lens", lambda old: old[:-1])),
    "MLA352": Case(_dcp("indexer"), put("metadata.decode.global_seq_lens", lambda old: old[:1])),
    "MLA353": Case(_kind("indexer"), poke("metadata.decode.decode_lens", 1, 1)),
    "MLA361": Case(_kind("indexer", **CUTS), put("metadata.prefill.chunks.1.token_start", 9)),
    "MLA362": Case(_kind("indexer", **CUTS), put("metadata.prefill.chunks.0.skip_kv_gather", True)),
    "MLA363": Case(_kind("indexer"), fact(indexer_rows=10)),
    "MLA364": Case(_kind("indexer"), fact(logits_budget_bytes=1000)),
    "MLA365": Case(_kind("indexer"), put("metadata.prefill.chunks.0.block_table", lambda old: old[:1])),
    "MLA366": Case(_dcp("indexer"), put("metadata.prefill.chunks.0.max_local_total_seq_lens", 1)),
    "MLA371": Case(_kind("indexer"), poke("metadata.prefill.chunks.0.cu_seqlen_ke", 0, 1)),
    "MLA372": Case(_kind("indexer"), poke("metadata.prefill.chunks.0.cu_seq_lens", 1, 11)),
    "MLA373": Case(_kind("indexer"), put("metadata.prefill.chunks.0.block_table", lambda old: old.flip(0))),
    "MLA374": Case(_dcp("indexer"), poke("metadata.prefill.chunks.0.local_cu_seq_lens", 1, 1)),
    "MLA381": Case(_kind("aiter"), put("metadata.paged_kv_indices", lambda old: old[:-1])),
    "MLA382": Case(_kind("aiter"), put("metadata.work_indptr", ints([0]))),
    "MLA383": Case(_kind("aiter"), poke("metadata.paged_kv_indptr", -1, 999)),
    "MLA384": Case(_pages, put("metadata.decode.paged_kv_indptr", ints([0, 9, 13]))),
    "MLA391": Case(
        _calls(Call("size", {"num_heads": 16}), Call("kernel", {"num_heads": 16})),
        proof(calls=(Call("size", {"num_heads": 8}), Call("kernel", {"num_heads": 16}))),
    ),
    "MLA392": Case(_reuse, proof(reuse=(Reuse("work", INPUTS, {**INPUTS, "token_kv_lens": (4,) * 8}),))),
    "MLA393": Case(lambda: with_trace(subject(), generation=(7, 7)), proof(generation=(6, 7))),
    "MLA394": Case(
        lambda: with_trace(subject(), device_reads=()),
        proof(device_reads=(DeviceRead("item()", ("builder.py:7 in longest", "builder.py:3 in build")),)),
    ),
    "MLA401": Case(_space, proof(workspace=replace(SPACE, reserved_bytes={SLOT: 0, OTHER: 1024}))),
    "MLA402": Case(_space, proof(workspace=replace(SPACE, reserved_bytes={SLOT: 32_768, OTHER: 1024}))),
    "MLA403": Case(_space, proof(workspace=replace(SPACE, rows=100))),
    "MLA404": Case(_space, proof(workspace=replace(SPACE, reserved_bytes={SLOT: 1024}))),
    "MLA405": Case(_space, proof(workspace=replace(SPACE, sites=frozenset({"fp8 scratch"})))),
    "MLA411": Case(_sliced, _child(_named("positions", None))),
    "MLA412": Case(_sliced, _child(_named("block_table_tensor", lambda old: old[:1]))),
    "MLA413": Case(_sliced, _child(_named("query_start_loc_cpu", lambda old: old + 9))),
    "MLA414": Case(_sliced, _child(_named("slot_mapping", lambda old: old.flip(0)))),
    "MLA421": Case(layer_records.window, poke("metadata.decode_swa_lens", 0, 9)),
    "MLA422": Case(layer_records.window, poke("metadata.prefill_swa_indices", (0, 0, 0), 9)),
    "MLA423": Case(layer_records.window, poke("metadata.is_valid_token", 0, 0)),
    "MLA424": Case(layer_records.window, poke("metadata.prefill_gather_lens", 0, 12)),
    "MLA431": Case(layer_records.state_rows, poke("metadata.c128a_decode_topk_lens", 0, 8)),
    "MLA432": Case(layer_records.state_rows, poke("metadata.c128a_prefill_topk_indices", (0, 0), 1)),
    "MLA433": Case(layer_records.state_rows, poke("metadata.slot_mapping", 1, 9)),
    "MLA434": Case(layer_records.window, poke("metadata.token_to_req_indices", 2, 0)),
    "MLA435": Case(layer_records.ring, poke("metadata.slot_mapping", 0, 9)),
}
