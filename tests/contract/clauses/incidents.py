"""Public incidents as batches: the described one is reported, its corrected twin is accepted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from mla_contract.contract.schema.declaration import BackendDeclaration, Routing
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.facts import Facts
from mla_contract.contract.step.trace import BuildTrace, Call, Lane, Reuse, Workspace, addresses_of
from tests.contract.clauses import records
from tests.contract.clauses.cases import CASES, LENS, PLAIN, SHARED, poke, put, subject, with_facts, with_trace
from tests.contract.clauses.records import ints
from tests.lab.decode_records import PlainSplitDecode


@dataclass(frozen=True)
class Incident:
    """One row of the list of public cases.

    Attributes:
        row: Its number in the list.
        issue: Its thread.
        codes: Clauses of which at least one reports the bad batch.
        good: The corrected batch.
        bad: The described batch.
    """

    row: int
    issue: str
    codes: tuple[str, ...]
    good: Callable[[], StepContext]
    bad: Callable[[], StepContext]


def _case(row: int, issue: str, *codes: str) -> Incident:
    """Return the incident whose batch is the first clause's own case."""
    case = CASES[codes[0]]
    return Incident(row, issue, codes, case.good, case.bad)


def _changed(
    good: Callable[[], StepContext], change: Callable[[StepContext], StepContext | None]
) -> Callable[[], StepContext]:
    def bad() -> StepContext:
        made = good()
        return replace(change(made) or made)

    return bad


def _twin(row: int, issue: str, codes: tuple[str, ...], good: Callable[[], StepContext], change: Any) -> Incident:
    return Incident(row, issue, codes, good, _changed(good, change))


def _calls(row: int, issue: str, name: str, wanted: object, got: object) -> Incident:
    """Return an incident in which two calls of one kernel family disagree."""

    def made(value: object) -> StepContext:
        return StepContext(trace=BuildTrace(calls=(Call("size", {name: value}), Call("kernel", {name: wanted}))))

    return Incident(row, issue, ("MLA391",), lambda: made(wanted), lambda: made(got))


def _space(**changes: Any) -> StepContext:
    slot = Lane(0, "prefill")
    space = Workspace(reserved_bytes={slot: 1000}, needed_bytes={slot: 1000})
    return StepContext(trace=BuildTrace(workspace=replace(space, **changes)))


def _reserved(reserved: int, needed: int) -> StepContext:
    slot = Lane(0, "decode")
    return _space(reserved_bytes={slot: reserved}, needed_bytes={slot: needed})


def _reuse(stored: dict[str, object], current: dict[str, object]) -> StepContext:
    return StepContext(trace=BuildTrace(reuse=(Reuse("work", stored, current),)))


def _dense(queries: Any, lens: Any, decodes: int, **facts: Any) -> StepContext:
    return subject("dense", replace(PLAIN, **facts), queries, lens, decodes)


def _sparse(queries: Any, lens: Any, decodes: int, **facts: Any) -> StepContext:
    return subject("sparse", replace(PLAIN, **facts), queries, lens, decodes)


def _indexer(queries: Any, lens: Any, decodes: int, **facts: Any) -> StepContext:
    return subject("indexer", replace(PLAIN, **facts), queries, lens, decodes)


def _stale_tail(queries: list[int]) -> StepContext:
    """Return one live request in a bucket of four, with offsets of these query lengths."""
    made = subject("indexer", PLAIN, (1, 0, 0, 0), (5, 0, 0, 0), 4)
    offsets = [sum(queries[:upto]) for upto in range(5)]
    made.batch.max_query_len = 2
    made.batch.query_start_loc = made.batch.query_start_loc_cpu = ints(offsets)
    return with_facts(made, max_num_seqs=4, max_capture_size=4, buffer_rows=8)


def _per_token_rows(rows: int) -> StepContext:
    """Return the decode subset of q=[1,64]: the kernel gets one row of q."""
    made = with_facts(_sparse((1, 64), (100, 64), 1, kernel_block_size=16), query_rows=1)
    made.metadata.req_id_per_token = made.metadata.req_id_per_token[:rows]
    return replace(made)


def _paged_rows(rows: int) -> StepContext:
    """Return three tokens padded to four, with paged offsets of ``rows`` rows."""
    made = with_facts(subject("aiter", queries=(3,), lens=(3,), decodes=0), query_rows=4)
    data = made.metadata
    data.req_id_per_token = torch.zeros(4, dtype=torch.int32)
    data.qo_indptr = torch.arange(5, dtype=torch.int32)
    data.paged_kv_last_page_len = torch.ones(4, dtype=torch.int32)
    data.paged_kv_indices = torch.zeros(4 * data.topk_tokens, dtype=torch.int32)
    data.paged_kv_indptr = ints([0, 1, 3, 6, 6][: rows + 1])
    return replace(made)


def _splits(entries: int) -> StepContext:
    """Return three requests in a bucket of four, with ``entries`` split offsets."""
    made = _dense((1, 1, 1, 0), (9, 6, 5, 0), 4)
    old = made.metadata.decode
    made.metadata.decode = PlainSplitDecode(old.block_table, old.seq_lens, None, num_splits=ints(range(entries)))
    return replace(made)


def _one_slot(row_of: int) -> StepContext:
    """Return one token at position 64 of 128-token blocks, stored by kernel block ``row_of``."""
    facts = replace(PLAIN, kernel_block_size=64, dcp_size=4, dcp_interleave=128)
    made = StepContext(batch=records.batch((65,), (65,), facts=facts, block=64), facts=facts)
    made.batch.block_table_tensor = ints([[6, 7]])
    slots = torch.arange(65) + 6 * 64
    slots[64] = row_of * 64
    made.batch.slot_mapping = slots
    return replace(made)


def _pooled(block: int) -> StepContext:
    """Return 64 tokens whose slots are made with ``block`` tokens a block instead of 16."""
    made = StepContext(batch=records.batch((64,), (64,), block=16), facts=replace(PLAIN, kernel_block_size=16))
    position = torch.arange(64)
    made.batch.slot_mapping = made.batch.block_table_tensor[0, position // 16].long() * block + position % 16
    return replace(made)


def _captured(same: bool) -> StepContext:
    made = subject()
    made = with_trace(made, captured=addresses_of(made.metadata, ("block_table", "req_id_per_token")))
    if not same:
        made.metadata.req_id_per_token = made.metadata.req_id_per_token.clone()
    return replace(made)


def _native_lens(first: int) -> StepContext:
    made = _indexer((2, 0), (9, 0), 2)
    made.metadata.decode.seq_lens = ints([[8, 9], [first, 0]])
    return replace(made)


def _flattened(rows: int) -> StepContext:
    """Return three single-token decodes padded to four tokens, flattened to ``rows`` rows."""
    made = with_facts(_indexer((1, 1, 1, 1), (8, 8, 8, 0), 4, compress_ratio=4), buffer_rows=16)
    decode = made.metadata.decode
    decode.seq_lens, decode.decode_lens = ints([2, 2, 2, 0])[:rows], torch.ones(4, dtype=torch.int32)
    return replace(made)


def _local_context(local: list[int]) -> StepContext:
    """Return dcp 2, interleave 1, ctx=[10] in chunks of 4, with these padded local lengths."""
    facts = replace(PLAIN, dcp_size=2, dcp_interleave=1, kernel_block_size=2, context_rows=32)
    made = subject("dense", facts, (2,), (12,), 0, split=4)
    for chunk, length in zip(made.metadata.prefill.chunked_context.chunks, local, strict=True):
        chunk.padded_local_seq_lens, chunk.num_local_context_tokens = [length], length
    return replace(made)


def _empty_cells(flags: list[bool]) -> StepContext:
    """Return ctx=[4,12] in chunks of 4 in the old shape, with these flags."""
    made = with_facts(_dense((2, 2), (6, 14), 0, decode_threshold=1), context_rows=None)
    made.metadata.prefill.chunked_context = records.field_context(made.batch, 0, 4)
    made.metadata.prefill.chunked_context.has_empty_context = flags
    return replace(made)


def _fresh_and_continued(empty: list[slice]) -> StepContext:
    """Return a fresh and a continued prefill, ctx=[8,0], with these slices listed as empty."""
    made = _dense((4, 4), (12, 4), 0)
    made.metadata.prefill.chunked_context.empty_token_slices = empty
    return replace(made)


def _xpu(num_decodes: int) -> StepContext:
    declared = BackendDeclaration(name="xpu", routing=Routing.ALL_DECODES, dense_prefill=False, decode_lse=False)
    made = subject(declaration=declared, decodes=5)
    made.metadata.decode_max_query_len = 5
    made.metadata.num_decodes = num_decodes
    return replace(made)


def _dense_choice(allowed: bool) -> StepContext:
    made = with_facts(
        subject(declaration=SHARED if allowed else replace(SHARED, dense_prefill=False)), topk_skipped=False
    )
    made.metadata.prefill.use_dense_mha, made.metadata.topk_tokens = True, max(LENS)
    return replace(made)


def _logits(rows: int) -> StepContext:
    made = with_facts(_indexer((8,), (16,), 0), logits_budget_bytes=256)
    chunks = []
    whole = made.metadata.prefill.chunks[0]
    for start in range(0, 8, rows):
        cut = slice(start, start + rows)
        chunks.append(
            replace(
                whole,
                cu_seqlen_ks=whole.cu_seqlen_ks[cut],
                cu_seqlen_ke=whole.cu_seqlen_ke[cut],
                token_start=start,
                token_end=start + rows,
                skip_kv_gather=start > 0,
            )
        )
    made.metadata.prefill.chunks = chunks
    return replace(made)


def _aligned(split: int) -> StepContext:
    """Return a context split every ``split`` tokens under dcp 4, interleave 16, block 16: aligned to 64."""
    facts = Facts(kernel_block_size=16, dcp_size=4, dcp_interleave=16, gather_by_page=True, context_rows=1024)
    return subject("dense", facts, (5,), (205,), 0, split=split)


def _ratio(rows: int) -> StepContext:
    """Return six requests of two states, ratio 4, with a buffer of ``rows`` states."""
    return with_facts(_indexer((1,) * 6, (8,) * 6, 0, compress_ratio=4, decode_threshold=1), indexer_rows=rows)


TOKENS = {"ctx 0": (1, 2, 3, 4, 4, 4, 4, 4), "ctx 8": (4,) * 8}

INCIDENTS: tuple[Incident, ...] = (
    _case(1, "vllm#38145", "MLA248"),
    _twin(2, "vllm#14009", ("MLA301",), lambda: _dense((4,), (20,), 0), put("metadata.prefill.chunked_context", None)),
    _twin(3, "vllm#44492", ("MLA209",), lambda: _dense((1, 5), (9, 5), 1), put("batch.seq_lens_cpu_upper_bound", None)),
    Incident(6, "vllm#55757", ("MLA249",), lambda: _dense_choice(True), lambda: _dense_choice(False)),
    _case(7, "vllm#52512", "MLA249"),
    _case(9, "vllm#47381", "MLA237"),
    Incident(
        10,
        "vllm#29644",
        ("MLA236",),
        lambda: _dense((4, 4, 4, 0, 0, 0, 0, 0), (9, 9, 9, 0, 0, 0, 0, 0), 8, decode_threshold=4, uniform_decodes=True),
        lambda: _dense((4, 4, 4, 0, 0, 0, 0, 0), (9, 9, 9, 0, 0, 0, 0, 0), 3, decode_threshold=4, uniform_decodes=True),
    ),
    Incident(
        11,
        "vllm-ascend#6835",
        ("MLA235",),
        lambda: _dense((4,), (4,), 0, decode_threshold=4),
        lambda: _dense((4,), (4,), 1, decode_threshold=4),
    ),
    _twin(13, "vllm#34187", ("MLA202",), lambda: _dense((1, 1), (3, 3), 2), put("batch.num_actual_tokens", 1)),
    Incident(18, "vllm#41229", ("MLA303",), lambda: _aligned(64), lambda: _aligned(45)),
    Incident(19, "vllm-ascend#5767", ("MLA303",), lambda: _aligned(64), lambda: _aligned(48)),
    Incident(20, "vllm#28476", ("MLA307",), lambda: _local_context([2, 2, 1]), lambda: _local_context([5, 5, 5])),
    Incident(
        22,
        "vllm#27491",
        ("MLA306",),
        lambda: _empty_cells([False, True, True]),
        lambda: _empty_cells([False, False, False]),
    ),
    Incident(
        23,
        "vllm#15492",
        ("MLA306",),
        lambda: _fresh_and_continued([slice(4, 8)]),
        lambda: _fresh_and_continued([]),
    ),
    Incident(
        24,
        "vllm#49294",
        ("MLA306",),
        lambda: _empty_cells([False, True, True]),
        lambda: _empty_cells([False, True, False]),
    ),
    _case(25, "vllm#50497", "MLA302"),
    _case(26, "vllm#45380", "MLA308"),
    Incident(28, "vllm#25290", ("MLA402",), lambda: _reserved(65_536, 65_536), lambda: _reserved(131_073, 65_536)),
    Incident(30, "vllm#36178", ("MLA364",), lambda: _logits(4), lambda: _logits(8)),
    Incident(31, "vllm#51252", ("MLA363",), lambda: _ratio(12), lambda: _ratio(10)),
    Incident(32, "vllm#55222", ("MLA402",), lambda: _reserved(500, 500), lambda: _reserved(5000, 500)),
    Incident(34, "local-inference-lab/vllm#1", ("MLA401",), lambda: _reserved(370, 370), lambda: _reserved(342, 370)),
    Incident(35, "sglang#35201", ("MLA401",), lambda: _reserved(3_276, 3_276), lambda: _reserved(0, 3_276)),
    Incident(37, "vllm#45032", ("MLA401",), lambda: _reserved(61, 61), lambda: _reserved(0, 61)),
    _case(38, "vllm#41700", "MLA405"),
    _case(39, "vllm#42275", "MLA404"),
    Incident(40, "vllm#55132", ("MLA402",), lambda: _reserved(1, 1), lambda: _reserved(32, 1)),
    _case(43, "vllm#57388", "MLA254"),
    Incident(44, "vllm#35175", ("MLA247",), lambda: _captured(True), lambda: _captured(False)),
    Incident(
        45,
        "vllm#39277",
        ("MLA203", "MLA205", "MLA345"),
        lambda: _stale_tail([1, 0, 0, 0]),
        lambda: _stale_tail([1, 8, 8, 8]),
    ),
    _case(46, "vllm#41016", "MLA345"),
    Incident(47, "vllm#51593", ("MLA348",), lambda: _native_lens(0), lambda: _native_lens(-1)),
    Incident(
        48,
        "vllm#51970",
        ("MLA349",),
        lambda: _indexer((1,) * 32, (4,) * 32, 32, compress_ratio=4, capturing=True, max_num_seqs=32, buffer_rows=64),
        lambda: _indexer((1,) * 32, (1,) * 32, 32, compress_ratio=4, capturing=True, max_num_seqs=32, buffer_rows=64),
    ),
    Incident(50, "vllm#48642", ("MLA251",), lambda: _per_token_rows(1), lambda: _per_token_rows(65)),
    Incident(52, "vllm#21691", ("MLA332",), lambda: _splits(5), lambda: _splits(4)),
    Incident(53, "ATOM#1595", ("MLA251",), lambda: _paged_rows(4), lambda: _paged_rows(3)),
    _twin(55, "vllm#43991", ("MLA206",), lambda: _dense((1,), (10,), 1, next_n=1), put("batch.max_seq_len", 8192)),
    _case(58, "vllm#32175", "MLA346"),
    _twin(
        59,
        "vllm#39542",
        ("MLA343",),
        lambda: _indexer((2, 1), (9, 7), 2),
        put("metadata.decode.decode_lens", ints([2, 1, 0, 0])),
    ),
    _case(60, "vllm#52500", "MLA344"),
    Incident(61, "vllm#56237", ("MLA343",), lambda: _flattened(4), lambda: _flattened(3)),
    _calls(62, "vllm#45227", "max_seqlen_q", 4, 1),
    _twin(
        64,
        "sglang#15429",
        ("MLA211",),
        lambda: _dense((4, 4), (14, 14), 0),
        put("batch.query_start_loc", ints([0, 2, 5])),
    ),
    Incident(65, "sglang#34443", ("MLA332",), lambda: _splits(5), lambda: _splits(7)),
    _twin(
        68,
        "vllm#38416",
        ("MLA333",),
        lambda: subject("dense", replace(PLAIN, dcp_size=8, dcp_rank=5), (1,), (5,), 1),
        poke("metadata.decode.seq_lens", 0, 1),
    ),
    Incident(69, "vllm#51031", ("MLA225",), lambda: _one_slot(7), lambda: _one_slot(6)),
    _case(70, "vllm#50095", "MLA222"),
    _case(73, "sglang#27276", "MLA216"),
    _twin(
        74,
        "vllm#28990",
        ("MLA334",),
        lambda: subject("dense", replace(PLAIN, dcp_size=2), (1,), (9,), 1),
        poke("metadata.decode.dcp_tot_seq_lens", 0, 5),
    ),
    _case(76, "vllm#36723", "MLA394"),
    _case(77, "vllm#45074", "MLA310"),
    _twin(
        80,
        "vllm#40987",
        ("MLA343",),
        lambda: _indexer((2, 2), (9, 6), 2),
        put("metadata.decode.seq_lens", lambda old: torch.cat([old, old], 1)[:, :2]),
    ),
    _case(82, "vllm#54019", "MLA226"),
    Incident(83, "vllm#54359", ("MLA221", "MLA225"), lambda: _pooled(16), lambda: _pooled(8)),
    _calls(87, "vllm#46997", "dtype_q", "fp8", "None"),
    _calls(88, "vllm#47276", "dtype_q", "fp8", "bf16"),
    _calls(89, "vllm#38615", "num_heads", 16, 8),
    Incident(
        91,
        "vllm#47766",
        ("MLA392",),
        lambda: _reuse({"token_kv_lens": TOKENS["ctx 0"]}, {"token_kv_lens": TOKENS["ctx 0"]}),
        lambda: _reuse({"token_kv_lens": TOKENS["ctx 0"]}, {"token_kv_lens": TOKENS["ctx 8"]}),
    ),
    _calls(94, "sglang#16531", "page_size", 64, 1),
    _case(96, "vllm#43966", "MLA411"),
    Incident(
        97,
        "vllm#48659",
        ("MLA392",),
        lambda: _reuse({"ubatch": 1}, {"ubatch": 1}),
        lambda: _reuse({}, {"ubatch": 1}),
    ),
    _case(98, "vllm#50945", "MLA246"),
    _case(100, "vllm-ascend#17170", "MLA215"),
    _calls(103, "vllm#55222-dtype", "plan_dtype", "fp8", "bf16"),
)
