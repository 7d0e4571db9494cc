"""Faults made by hand in the indexer's record, its decode part and its chunks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mla_contract.contract.step.context import StepContext
from mla_contract.testing.context_records import tensor
from tests.lab import subjects as legal
from tests.lab.changes import both, cut, fact, flip, poke, put
from tests.lab.context_faults import CONTEXT_TABLES
from tests.lab.fault_lines import Line, Maker, elements, planted, rows, shifts
from tests.lab.faults import PlantedFault

CHUNKS = "metadata.prefill.chunks"
FIRST, SECOND, THIRD = f"{CHUNKS}.0", f"{CHUNKS}.1", f"{CHUNKS}.2"

INDEXER: tuple[Line, ...] = (
    *shifts("metadata.num_prefill_tokens", "MLA341", "MLA341"),
    *shifts("metadata.num_decode_tokens", "MLA341 MLA233", "MLA341 MLA233", "metadata.num_prefill_tokens"),
    *shifts("metadata.num_decodes", "MLA232", "MLA232", "metadata.num_prefills"),
    *shifts("metadata.num_prefills", "MLA232", "MLA232", "metadata.num_decodes"),
    ("request/token confusion", "metadata.num_prefill_tokens", put("metadata.num_prefill_tokens", 3), "MLA341"),
    *shifts("metadata.max_seq_len", "MLA244", "MLA244"),
    ("forgotten record", "metadata.decode", put("metadata.decode", None), "MLA342"),
    ("forgotten record", "metadata.prefill", put("metadata.prefill", None), "MLA342"),
    *rows("metadata.seq_lens", "MLA107 MLA351"),
    ("row too few", "metadata.slot_mapping", cut("metadata.slot_mapping"), "MLA107 MLA208"),
    *rows("metadata.decode.block_table", "MLA107 MLA343", "metadata.decode.decode_lens metadata.decode.seq_lens"),
    *rows("metadata.decode.seq_lens", "MLA107 MLA343", "metadata.decode.decode_lens"),
    *rows("metadata.decode.decode_lens", "MLA107 MLA343"),
    *elements("metadata.decode.seq_lens", (0, 0), "MLA348"),
    ("element too large", "metadata.decode.decode_lens", poke("metadata.decode.decode_lens", 1, 8), "MLA347"),
    ("element too small", "metadata.decode.decode_lens", poke("metadata.decode.decode_lens", 1, 1), "MLA353"),
    ("swapped rows", "metadata.decode.seq_lens", flip("metadata.decode.seq_lens"), "MLA348"),
    ("swapped rows", "metadata.decode.block_table", flip("metadata.decode.block_table"), "MLA335"),
    ("cached for total", "metadata.decode.seq_lens", put("metadata.decode.seq_lens", lambda old: old - 2), "MLA348"),
    ("all zero", "metadata.decode.seq_lens", put("metadata.decode.seq_lens", lambda old: old * 0), "MLA349 MLA348"),
    ("wrong unit", "metadata.decode.seq_lens", put("metadata.decode.seq_lens", lambda old: old // 2), "MLA348"),
    (
        "not expanded",
        "metadata.decode.seq_lens",
        put("metadata.decode.seq_lens", lambda old: old[:, -1:].expand(-1, 2).contiguous()),
        "MLA348",
    ),
    ("too small", "metadata.decode", fact(buffer_rows=15), "MLA345"),
    ("too small", "metadata.decode", fact(max_capture_size=32), "MLA345"),
    ("too large", "metadata.decode.schedule_metadata", fact(schedule_rows=0), "MLA332"),
    ("row too many", "metadata.decode", fact(topk_rows=5), "MLA346"),
    (
        "wrong flag",
        "metadata.decode.requires_padding",
        both(
            put("metadata.decode.requires_padding", False),
            put("metadata.decode.seq_lens", lambda old: old[:, :1].clone()),
        ),
        "MLA344",
    ),
)
CHUNK_LINES: tuple[Line, ...] = (
    ("gap", f"{SECOND}.token_start", put(f"{SECOND}.token_start", lambda old: old + 1), "MLA361"),
    ("overlap", f"{SECOND}.token_start", put(f"{SECOND}.token_start", lambda old: old - 1), "MLA361"),
    ("gap", CHUNKS, put(CHUNKS, lambda old: old[:-1]), "MLA361"),
    ("overlap", CHUNKS, put(CHUNKS, lambda old: [old[0], *old]), "MLA361", f"{SECOND}.token_start"),
    ("wrong order", CHUNKS, put(CHUNKS, lambda old: old[::-1]), "MLA361", f"{FIRST}.token_start {SECOND}.token_start"),
    *shifts(
        f"{FIRST}.token_end",
        "MLA361 MLA365",
        "MLA361 MLA365",
        f"{SECOND}.token_start {FIRST}.cu_seqlen_ks {FIRST}.cu_seqlen_ke",
    ),
    (
        "request/token confusion",
        f"{FIRST}.token_end",
        put(f"{FIRST}.token_end", 6),
        "MLA361 MLA365",
        f"{SECOND}.token_start {FIRST}.cu_seqlen_ks",
    ),
    ("prefill-local tokens", f"{FIRST}.token_start", put(f"{FIRST}.token_start", 0), "MLA361"),
    ("wrong flag", f"{FIRST}.skip_kv_gather", put(f"{FIRST}.skip_kv_gather", True), "MLA362"),
    ("wrong flag", f"{SECOND}.skip_kv_gather", put(f"{SECOND}.skip_kv_gather", True), "MLA362"),
    ("forgotten flag", f"{THIRD}.skip_kv_gather", put(f"{THIRD}.skip_kv_gather", False), "MLA362"),
    *shifts(f"{FIRST}.total_seq_lens", "MLA107 MLA363", "MLA107 MLA363", f"{FIRST}.token_to_seq"),
    *shifts(f"{FIRST}.num_reqs", "MLA107 MLA365", "MLA107 MLA365", f"{FIRST}.block_table {FIRST}.cu_seq_lens"),
    ("too small", f"{FIRST}.total_seq_lens", fact(indexer_rows=14), "MLA363"),
    ("too large", f"{FIRST}.token_end", fact(logits_budget_bytes=300), "MLA364"),
    *rows(f"{FIRST}.cu_seqlen_ks", "MLA107 MLA365", f"{FIRST}.cu_seqlen_ke"),
    *rows(f"{FIRST}.cu_seqlen_ke", "MLA107 MLA365"),
    *rows(f"{FIRST}.cu_seq_lens", "MLA107 MLA365"),
    *rows(f"{FIRST}.block_table", "MLA107 MLA365"),
    *rows(f"{FIRST}.token_to_seq", "MLA107 MLA372"),
    *elements(f"{FIRST}.cu_seqlen_ks", 1, "MLA371"),
    *elements(f"{FIRST}.cu_seqlen_ke", 1, "MLA371"),
    *elements(f"{FIRST}.cu_seq_lens", 1, "MLA372"),
    *elements(f"{FIRST}.token_to_seq", 3, "MLA372"),
    *elements(f"{FIRST}.block_table", (0, 0), "MLA373"),
    ("swapped rows", f"{FIRST}.block_table", flip(f"{FIRST}.block_table"), "MLA373"),
    ("swapped rows", f"{FIRST}.cu_seqlen_ke", flip(f"{FIRST}.cu_seqlen_ke"), "MLA371"),
    ("swapped rows", f"{FIRST}.token_to_seq", flip(f"{FIRST}.token_to_seq"), "MLA372"),
    ("cached for total", f"{FIRST}.cu_seqlen_ke", put(f"{FIRST}.cu_seqlen_ke", lambda old: old - 1), "MLA371"),
    ("wrong unit", f"{FIRST}.cu_seqlen_ke", fact(compress_ratio=2), "MLA371 MLA363", f"{FIRST}.total_seq_lens"),
)
DCP: tuple[Line, ...] = (
    *shifts(f"{FIRST}.local_total_seq_lens", "MLA366 MLA374", "MLA374"),
    *shifts(f"{FIRST}.max_local_total_seq_lens", "MLA374", "MLA366 MLA374"),
    ("forgotten", f"{FIRST}.local_cu_seq_lens", put(f"{FIRST}.local_cu_seq_lens", None), "MLA374"),
    *elements(f"{FIRST}.local_cu_seq_lens", 1, "MLA374"),
    *rows(f"{FIRST}.local_cu_seq_lens", "MLA107 MLA374"),
    (
        "global for local",
        f"{FIRST}.local_cu_seq_lens",
        lambda subject: put(f"{FIRST}.local_cu_seq_lens", subject.metadata.prefill.chunks[0].cu_seq_lens)(subject),
        "MLA374",
    ),
    (
        "global for local",
        "metadata.decode.seq_lens",
        lambda subject: put("metadata.decode.seq_lens", subject.metadata.decode.global_seq_lens)(subject),
        "MLA348",
    ),
    (
        "local for global",
        "metadata.decode.global_seq_lens",
        lambda subject: put("metadata.decode.global_seq_lens", subject.metadata.decode.seq_lens)(subject),
        "MLA350",
    ),
    *elements("metadata.decode.global_seq_lens", 0, "MLA350"),
    *rows("metadata.decode.global_seq_lens", "MLA352"),
)
PADDED: tuple[Line, ...] = (
    (
        "stale tail",
        "metadata.decode.decode_lens",
        lambda subject: put("metadata.decode.decode_lens", tensor([1, 1, 8]))(subject),
        "MLA347",
    ),
    (
        "row too few",
        "metadata.decode.seq_lens",
        cut("metadata.decode.seq_lens"),
        "MLA343 MLA107",
        "metadata.decode.block_table metadata.decode.decode_lens",
    ),
    ("negative element", "metadata.decode.seq_lens", poke("metadata.decode.seq_lens", 2, -1), "MLA348"),
    ("stale element", "metadata.decode.seq_lens", poke("metadata.decode.seq_lens", 2, 9), "MLA348"),
)


def _dealt_in_tokens(subject: StepContext) -> None:
    """Sum the local states of the first chunk as if the ranks' turns were counted in states."""
    states = np.diff(subject.metadata.prefill.chunks[0].cu_seq_lens.numpy())
    local = subject.facts.local_lens(states)
    put(f"{FIRST}.local_cu_seq_lens", tensor(np.concatenate([[0], np.cumsum(local)])))(subject)


STATES: tuple[Line, ...] = (
    (
        "wrong unit",
        "metadata.decode.global_seq_lens",
        put("metadata.decode.global_seq_lens", lambda old: old // 2),
        "MLA350",
    ),
    ("wrong unit", "metadata.decode.seq_lens", put("metadata.decode.seq_lens", lambda old: old * 2), "MLA348"),
    ("wrong unit", f"{FIRST}.local_cu_seq_lens", _dealt_in_tokens, "MLA374"),
)

TABLES: tuple[tuple[str, Maker, tuple[Line, ...]], ...] = (
    *CONTEXT_TABLES,
    ("indexer", legal.BASES["indexer"], (*INDEXER, *CHUNK_LINES)),
    ("indexer, DCP", legal.BASES["indexer, DCP"], DCP),
    ("indexer, DCP in states", legal.states_indexer, STATES),
    ("indexer, flattened and padded", legal.padded_indexer, PADDED),
)


def indexer_faults() -> Iterator[PlantedFault]:
    """Yield the faults in the indexer's record and in chunked context."""
    for base, make, lines in TABLES:
        yield from planted(base, make, lines)
