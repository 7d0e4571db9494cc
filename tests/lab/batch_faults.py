"""Faults made by hand in the common batch, and in the tail of a padded one."""

from __future__ import annotations

from mla_contract.testing.context_records import tensor
from mla_contract.testing.lowering import LoweredKind
from tests.lab import subjects as legal
from tests.lab.changes import both, fact, flip, poke, put, shift
from tests.lab.fault_lines import Line, elements, rows, shifts

BATCH: tuple[Line, ...] = (
    *shifts(
        "batch.num_reqs",
        "MLA107 MLA232 MLA244",
        "MLA107 MLA232 MLA244",
        "batch.query_start_loc batch.seq_lens"
        " batch.block_table_tensor batch.query_start_loc_cpu batch.seq_lens_cpu_upper_bound metadata.num_reqs",
    ),
    *shifts("batch.num_actual_tokens", "MLA208", "MLA202", "metadata.slot_mapping"),
    ("one too few", "batch.max_query_len", shift("batch.max_query_len", -1), "MLA205"),
    *shifts("batch.max_seq_len", "MLA206 MLA244", "MLA206 MLA213", "metadata.max_seq_len"),
    (
        "wrong unit",
        "batch.max_seq_len",
        both(fact(next_n=1), put("batch.max_seq_len", lambda old: old * legal.BLOCK)),
        "MLA206",
    ),
    *rows("batch.query_start_loc", "MLA107"),
    *rows("batch.query_start_loc_cpu", "MLA107"),
    *rows("batch.seq_lens", "MLA107"),
    *rows("batch.block_table_tensor", "MLA107"),
    *rows("batch.slot_mapping", "MLA107 MLA208 MLA221"),
    *rows("batch.positions", "MLA107"),
    *rows("batch.seq_lens_cpu_upper_bound", "MLA107"),
    *elements("batch.query_start_loc", 1, "MLA211"),
    *elements("batch.query_start_loc_cpu", 1, "MLA211 MLA233", "batch.query_start_loc metadata.num_decode_tokens"),
    *elements("batch.seq_lens", 0, "MLA214 MLA225", "batch.seq_lens_cpu_upper_bound batch.slot_mapping"),
    *elements(
        "batch.seq_lens_cpu_upper_bound",
        2,
        "MLA214 MLA206 MLA242 MLA302",
        "batch.max_seq_len metadata.prefill.chunked_context.chunks",
    ),
    *elements("batch.slot_mapping", 0, "MLA221 MLA225"),
    *elements("batch.block_table_tensor", (2, 0), "MLA264", "metadata.prefill.block_table"),
    ("swapped rows", "batch.seq_lens", flip("batch.seq_lens"), "MLA212 MLA214", "batch.seq_lens_cpu_upper_bound"),
    ("swapped rows", "batch.block_table_tensor", flip("batch.block_table_tensor"), "MLA225", "batch.slot_mapping"),
    ("swapped rows", "batch.slot_mapping", flip("batch.slot_mapping"), "MLA225"),
    ("swapped rows", "batch.query_start_loc", flip("batch.query_start_loc"), "MLA211"),
    ("swapped rows", "batch.query_start_loc_cpu", flip("batch.query_start_loc_cpu"), "MLA201"),
    (
        "swapped rows",
        "batch.seq_lens_cpu_upper_bound",
        flip("batch.seq_lens_cpu_upper_bound"),
        "MLA204 MLA214 MLA231",
        "batch.query_start_loc_cpu",
    ),
    ("starts above 0", "batch.query_start_loc_cpu", put("batch.query_start_loc_cpu", lambda old: old + 1), "MLA201"),
    ("starts above 0", "batch.query_start_loc", put("batch.query_start_loc", lambda old: old + 1), "MLA211"),
    (
        "lengths for offsets",
        "batch.query_start_loc_cpu",
        put("batch.query_start_loc_cpu", tensor([2, 2, 5, 3, 4, 0])),
        "MLA201",
    ),
    (
        "lengths for offsets",
        "batch.query_start_loc",
        put("batch.query_start_loc", tensor([2, 2, 5, 3, 4, 0])),
        "MLA211",
    ),
    ("request/token confusion", "batch.num_actual_tokens", put("batch.num_actual_tokens", 5), "MLA202"),
    ("request/token confusion", "batch.slot_mapping", put("batch.slot_mapping", lambda old: old[:5]), "MLA107 MLA208"),
    (
        "cached for total",
        "batch.seq_lens",
        put("batch.seq_lens", tensor([7, 4, 7, 8, 0])),
        "MLA214 MLA225",
        "batch.seq_lens_cpu_upper_bound batch.slot_mapping",
    ),
    (
        "cached for total",
        "batch.seq_lens_cpu_upper_bound",
        put("batch.seq_lens_cpu_upper_bound", tensor([7, 4, 7, 8, 0])),
        "MLA204 MLA206 MLA214",
        "batch.max_seq_len",
    ),
    (
        "wrong unit",
        "batch.block_table_tensor",
        put("batch.block_table_tensor", lambda old: old * legal.BLOCK),
        "MLA223 MLA225",
        "batch.slot_mapping",
    ),
    ("wrong unit", "batch.slot_mapping", put("batch.slot_mapping", lambda old: old // legal.BLOCK), "MLA221 MLA225"),
    ("wrong unit", "batch.slot_mapping", fact(slot_span=legal.BLOCK * 2), "MLA225"),
    (
        "too narrow",
        "batch.block_table_tensor",
        put("batch.block_table_tensor", lambda old: old[:, :2].contiguous()),
        "MLA207",
    ),
    ("out of range", "batch.block_table_tensor", poke("batch.block_table_tensor", (0, 0), 100), "MLA223"),
    ("negative element", "batch.block_table_tensor", poke("batch.block_table_tensor", (0, 1), -1), "MLA223"),
    ("negative element", "batch.slot_mapping", poke("batch.slot_mapping", 3, -2), "MLA221"),
    ("negative element", "batch.seq_lens", poke("batch.seq_lens", 1, -6), "MLA212"),
    ("shared row", "batch.slot_mapping", poke("batch.slot_mapping", 1, lambda old: old - 1), "MLA221"),
    ("address overflow", "batch.slot_mapping", fact(row_stride=2**30), "MLA226"),
    ("forgotten", "batch.seq_lens_cpu_upper_bound", put("batch.seq_lens_cpu_upper_bound", None), "MLA209"),
    (
        "wrong order",
        "batch.query_start_loc_cpu",
        lambda subject: legal.make_subject(LoweredKind.DENSE, ((5, 7), (1, 7), (4, 0))),
        "MLA231",
    ),
)
PADDED: tuple[Line, ...] = (
    ("stale tail", "batch.query_start_loc_cpu", put("batch.query_start_loc_cpu", tensor([0, 2, 4, 5, 6])), "MLA203"),
    ("stale tail", "batch.query_start_loc", put("batch.query_start_loc", tensor([0, 2, 4, 5, 6])), "MLA211"),
    ("stale tail", "batch.seq_lens", poke("batch.seq_lens", 3, 7), "MLA212"),
    ("stale tail", "batch.seq_lens_cpu_upper_bound", poke("batch.seq_lens_cpu_upper_bound", 3, 7), "MLA214"),
    (
        "stale tail",
        "batch.block_table_tensor",
        both(fact(next_n=1), poke("batch.block_table_tensor", (3, 0), 5)),
        "MLA224",
    ),
    ("stale tail", "metadata.decode.seq_lens", poke("metadata.decode.seq_lens", 3, 7), "MLA333"),
    ("negative tail", "metadata.decode.seq_lens", poke("metadata.decode.seq_lens", 2, -1), "MLA333"),
    (
        "padding first",
        "batch.query_start_loc_cpu",
        both(
            put("batch.query_start_loc_cpu", tensor([0, 0, 2, 4, 4])),
            put("batch.query_start_loc", tensor([0, 0, 2, 4, 4])),
            put("batch.seq_lens", tensor([0, 9, 6, 0])),
            put("batch.seq_lens_cpu_upper_bound", tensor([0, 9, 6, 0])),
        ),
        "MLA231",
    ),
    (
        "wrong split",
        "metadata.num_prefills",
        both(
            put("metadata.num_decodes", 2),
            put("metadata.num_prefills", 2),
            put("metadata.num_decode_tokens", 4),
        ),
        "MLA236",
    ),
)
