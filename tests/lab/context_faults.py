"""Faults made by hand in chunked context, in both of its shapes and under context parallelism."""

from __future__ import annotations

from typing import Any

from tests.lab import subjects as legal
from tests.lab.changes import cut, fact, flip, poke, put
from tests.lab.fault_lines import Line, Maker, elements, rows, shifts

CONTEXT = "metadata.prefill.chunked_context"
CHUNKS = f"{CONTEXT}.chunks"
FIRST, LAST = f"{CHUNKS}.0", f"{CHUNKS}.1"


def _without_last(slots: Any) -> Any:
    """Return slots of which the largest is not stored."""
    return slots.where(slots != slots.max(), slots * 0 - 1)


CHUNK_LINES: tuple[Line, ...] = (
    ("forgotten record", CONTEXT, put(CONTEXT, None), "MLA301"),
    ("gap", CHUNKS, put(CHUNKS, lambda old: old[:-1]), "MLA302"),
    ("overlap", CHUNKS, put(CHUNKS, lambda old: [*old, old[-1]]), "MLA302"),
    ("wrong order", CHUNKS, put(CHUNKS, lambda old: old[::-1]), "MLA303 MLA321", f"{FIRST} {LAST} {FIRST}.starts"),
    *elements(f"{CONTEXT}.context_lens", 0, "MLA302 MLA324", CHUNKS),
    *rows(f"{CONTEXT}.context_lens", "MLA107"),
    (
        "swapped rows",
        f"{CONTEXT}.context_lens_list",
        put(f"{CONTEXT}.context_lens_list", lambda old: old[::-1]),
        "MLA302",
    ),
    (
        "one too many",
        f"{CONTEXT}.context_lens_list",
        put(f"{CONTEXT}.context_lens_list", lambda old: [old[0] + 1, *old[1:]]),
        "MLA302",
    ),
    (
        "row too few",
        f"{CONTEXT}.context_lens_list",
        put(f"{CONTEXT}.context_lens_list", lambda old: old[:-1]),
        "MLA302",
    ),
    ("forgotten", f"{CONTEXT}.empty_token_slices", put(f"{CONTEXT}.empty_token_slices", []), "MLA306"),
    ("wrong slice", f"{CONTEXT}.empty_token_slices", put(f"{CONTEXT}.empty_token_slices", [slice(7, 12)]), "MLA306"),
    ("too small", CHUNKS, fact(context_rows=8), "MLA304", f"{FIRST}.seq_lens"),
    ("wrong kind of gather", f"{CONTEXT}.workspace", fact(gather_kind="dequantise"), "MLA311"),
    ("wrong dtype", f"{CONTEXT}.workspace", put(f"{CONTEXT}.workspace", lambda old: old.half()), "MLA311"),
    ("not pinned", f"{FIRST}.seq_lens", fact(pinned_sources=True), "MLA310"),
    *shifts(f"{FIRST}.num_context_tokens", "MLA107 MLA305", "MLA107 MLA305", f"{FIRST}.token_to_seq"),
    *shifts(f"{FIRST}.num_local_context_tokens", "MLA305", "MLA305"),
    *shifts(f"{FIRST}.max_seq_len", "MLA305", "MLA305"),
    *shifts(f"{FIRST}.max_query_len", "MLA309", "MLA309"),
    *shifts(f"{FIRST}.continuation_token_end", "MLA309", "MLA309"),
    ("wrong flag", f"{FIRST}.all_rows_active", put(f"{FIRST}.all_rows_active", False), "MLA309"),
    ("wrong flag", f"{LAST}.is_continuation", put(f"{LAST}.is_continuation", False), "MLA313"),
    ("wrong index", f"{LAST}.index", put(f"{LAST}.index", 0), "MLA312"),
    ("wrong slice", f"{FIRST}.token_slice", put(f"{FIRST}.token_slice", slice(0, 5)), "MLA309"),
    ("wrong slice", f"{FIRST}.request_slice", put(f"{FIRST}.request_slice", slice(0, 1)), "MLA309"),
    ("request/token confusion", f"{FIRST}.token_slice", put(f"{FIRST}.token_slice", slice(0, 2)), "MLA309"),
    *elements(f"{FIRST}.seq_lens", 0, "MLA302 MLA305", f"{CHUNKS}"),
    ("empty cell", f"{FIRST}.seq_lens", poke(f"{FIRST}.seq_lens", 1, 0), "MLA306 MLA302", CHUNKS),
    *elements(f"{LAST}.starts", 0, "MLA321"),
    ("wrong unit", f"{LAST}.starts", put(f"{LAST}.starts", lambda old: old // legal.BLOCK), "MLA321"),
    *elements(f"{FIRST}.cu_seq_lens", 1, "MLA322"),
    *elements(f"{FIRST}.query_start_loc", 1, "MLA323"),
    *elements(f"{FIRST}.token_to_seq", 2, "MLA322"),
    *rows(f"{FIRST}.cu_seq_lens", "MLA107"),
    *rows(f"{FIRST}.query_start_loc", "MLA107 MLA323"),
    *rows(f"{FIRST}.starts", "MLA107"),
    *rows(f"{FIRST}.seq_lens", "MLA107 MLA302 MLA309", f"{CHUNKS} {FIRST}.request_slice {FIRST}.starts"),
    *rows(f"{FIRST}.token_to_seq", "MLA107 MLA305"),
    ("swapped rows", f"{FIRST}.token_to_seq", flip(f"{FIRST}.token_to_seq"), "MLA322"),
    ("swapped rows", f"{FIRST}.seq_lens", flip(f"{FIRST}.seq_lens"), "MLA302 MLA322", f"{CHUNKS} {FIRST}.cu_seq_lens"),
    (
        "too narrow",
        "metadata.prefill.block_table",
        put("metadata.prefill.block_table", lambda old: old[:, :1].clone()),
        "MLA308",
        CHUNKS,
    ),
)
FIELD_LINES: tuple[Line, ...] = (
    ("gap", f"{CONTEXT}.seq_lens", cut(f"{CONTEXT}.seq_lens"), "MLA107 MLA302", f"{CONTEXT}.chunks {CONTEXT}.starts"),
    *elements(f"{CONTEXT}.seq_lens", (0, 0), "MLA302", f"{CONTEXT}.chunks"),
    *elements(f"{CONTEXT}.starts", (1, 0), "MLA321", f"{CONTEXT}.seq_lens.1.starts"),
    *elements(f"{CONTEXT}.cu_seq_lens", (0, 1), "MLA322", f"{CONTEXT}.seq_lens.0.cu_seq_lens"),
    *elements(f"{CONTEXT}.token_to_seq", (0, 1), "MLA322", f"{CONTEXT}.seq_lens.0.token_to_seq"),
    (
        "one too many",
        f"{CONTEXT}.seq_tot",
        put(f"{CONTEXT}.seq_tot", lambda old: [old[0] + 1, *old[1:]]),
        "MLA305",
        f"{CONTEXT}.seq_tot.0",
    ),
    (
        "one too many",
        f"{CONTEXT}.max_seq_lens",
        put(f"{CONTEXT}.max_seq_lens", lambda old: [old[0] + 1, *old[1:]]),
        "MLA305",
        f"{CONTEXT}.max_seq_lens.0",
    ),
    (
        "one too many",
        f"{CONTEXT}.chunk_total_token",
        put(f"{CONTEXT}.chunk_total_token", lambda old: [old[0] + 1, *old[1:]]),
        "MLA305",
        f"{CONTEXT}.chunk_total_token.0",
    ),
    (
        "wrong flag",
        f"{CONTEXT}.has_empty_context",
        put(f"{CONTEXT}.has_empty_context", lambda old: [False] * len(old)),
        "MLA306",
        f"{CONTEXT}.has_empty_context.0",
    ),
    (
        "row too few",
        f"{CONTEXT}.token_to_seq",
        put(f"{CONTEXT}.token_to_seq", lambda old: old[:, :-1].clone()),
        "MLA305",
        f"{CONTEXT}.token_to_seq.0",
    ),
    ("too small", f"{CONTEXT}.seq_lens", fact(context_rows=4), "MLA304", f"{CONTEXT}.seq_lens.0"),
    ("not aligned", f"{CONTEXT}.seq_lens", fact(kernel_block_size=3), "MLA303", f"{CONTEXT}.seq_lens.1"),
    (
        "swapped rows",
        f"{CONTEXT}.seq_lens",
        flip(f"{CONTEXT}.seq_lens"),
        "MLA303 MLA305 MLA322",
        f"{CONTEXT}.seq_lens.0 {CONTEXT}.seq_lens.1",
    ),
)
DCP_LINES: tuple[Line, ...] = (
    (
        "one too many",
        f"{FIRST}.padded_local_seq_lens",
        put(f"{FIRST}.padded_local_seq_lens", lambda old: [old[0] + 1, *old[1:]]),
        "MLA307",
    ),
    (
        "global for local",
        f"{FIRST}.padded_local_seq_lens",
        lambda subject: put(f"{FIRST}.padded_local_seq_lens", [7, 4])(subject),
        "MLA307 MLA305",
    ),
    ("forgotten", f"{FIRST}.padded_local_seq_lens", put(f"{FIRST}.padded_local_seq_lens", None), "MLA304 MLA307"),
    (
        "one too many",
        f"{FIRST}.local_context_lens_allranks",
        put(f"{FIRST}.local_context_lens_allranks", lambda old: [[old[0][0] + 1, *old[0][1:]], *old[1:]]),
        "MLA307",
        f"{CONTEXT}.local_context_lens_allranks",
    ),
    *elements(f"{FIRST}.padded_local_cu_seq_lens", 1, "MLA325"),
    *elements(f"{FIRST}.padded_local_token_to_seq", 1, "MLA325"),
    *rows(f"{FIRST}.padded_local_cu_seq_lens", "MLA107"),
    *rows(f"{FIRST}.padded_local_token_to_seq", "MLA107"),
    ("element too large", f"{FIRST}.local_starts", put(f"{FIRST}.local_starts", [1, 0]), "MLA314"),
    ("global for local", f"{LAST}.starts", put(f"{LAST}.starts", lambda old: old * 2), "MLA321"),
    (
        "global for local",
        "metadata.decode.seq_lens",
        lambda subject: put("metadata.decode.seq_lens", subject.metadata.decode.dcp_tot_seq_lens)(subject),
        "MLA333",
    ),
    (
        "local for global",
        "metadata.decode.dcp_tot_seq_lens",
        lambda subject: put("metadata.decode.dcp_tot_seq_lens", subject.metadata.decode.seq_lens)(subject),
        "MLA334",
    ),
    *elements("metadata.decode.dcp_tot_seq_lens", 0, "MLA334"),
    *rows("metadata.decode.dcp_tot_seq_lens", "MLA107 MLA331"),
    ("another rank", "batch.slot_mapping", fact(dcp_rank=0), "MLA222"),
    (
        "stored everywhere",
        "batch.slot_mapping",
        put("batch.slot_mapping", lambda old: old.clamp(min=0)),
        "MLA221 MLA222",
    ),
    (
        "stored nowhere",
        "batch.slot_mapping",
        put("batch.slot_mapping", _without_last),
        "MLA222",
    ),
    ("not aligned", FIRST, fact(kernel_block_size=3), "MLA303 MLA225", f"{LAST}"),
)

CONTEXT_TABLES: tuple[tuple[str, Maker, tuple[Line, ...]], ...] = (
    ("dense", legal.BASES["dense"], CHUNK_LINES),
    ("dense, context lists", legal.BASES["dense, context lists"], FIELD_LINES),
    ("dense, DCP", legal.BASES["dense, DCP"], DCP_LINES),
)
