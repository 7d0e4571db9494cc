"""Faults made by hand in MLA metadata: each field is right by itself, and wrong together with another."""

from __future__ import annotations

from collections.abc import Iterator

from mla_contract.testing.context_records import tensor
from tests.lab import subjects as legal
from tests.lab.batch_faults import BATCH, PADDED
from tests.lab.changes import both, cut, fact, flip, poke, put, shift
from tests.lab.fault_lines import Line, Maker, elements, planted, rows, shifts
from tests.lab.faults import PlantedFault


def value_faults() -> Iterator[PlantedFault]:
    """Yield every fault made by hand."""
    from tests.lab.event_faults import event_faults
    from tests.lab.indexer_faults import indexer_faults
    from tests.lab.layer_faults import layer_faults
    from tests.lab.work_faults import work_faults

    for base, make, lines in TABLES:
        yield from planted(base, make, lines)
    yield from indexer_faults()
    yield from event_faults()
    yield from work_faults()
    yield from layer_faults()


DENSE: tuple[Line, ...] = (
    ("stale element", "batch.positions", poke("batch.positions", 1, 1), "MLA217"),
    *shifts("metadata.num_reqs", "MLA107 MLA244", "MLA107 MLA244", "metadata.query_start_loc"),
    *shifts("metadata.num_actual_tokens", "MLA244", "MLA244"),
    *shifts("metadata.max_query_len", "MLA244", "MLA244"),
    *shifts("metadata.max_seq_len", "MLA244", "MLA244"),
    *shifts("metadata.num_decodes", "MLA232", "MLA232", "metadata.num_prefills"),
    *shifts("metadata.num_prefills", "MLA232", "MLA232", "metadata.num_decodes"),
    *shifts("metadata.num_decode_tokens", "MLA233", "MLA233"),
    ("request/token confusion", "metadata.num_decode_tokens", put("metadata.num_decode_tokens", 2), "MLA233"),
    (
        "request/token confusion",
        "metadata.num_decodes",
        put("metadata.num_decodes", 4),
        "MLA232 MLA233",
        "metadata.num_prefills",
    ),
    ("forgotten count", "metadata.num_prefills", put("metadata.num_prefills", 0), "MLA232", "metadata.num_decodes"),
    ("forgotten count", "metadata.num_decodes", put("metadata.num_decodes", 0), "MLA232", "metadata.num_prefills"),
    ("forgotten count", "metadata.num_decode_tokens", put("metadata.num_decode_tokens", 0), "MLA232 MLA233"),
    (
        "wrong split",
        "metadata.num_decodes",
        both(
            put("metadata.num_decodes", 3),
            put("metadata.num_prefills", 2),
            put("metadata.num_decode_tokens", 9),
        ),
        "MLA234",
    ),
    (
        "split not maximal",
        "metadata.num_decodes",
        both(
            put("metadata.num_decodes", 1),
            put("metadata.num_prefills", 4),
            put("metadata.num_decode_tokens", 2),
        ),
        "MLA237",
    ),
    *rows("metadata.query_start_loc", "MLA107"),
    ("row too few", "metadata.slot_mapping", cut("metadata.slot_mapping"), "MLA107 MLA208"),
    ("forgotten record", "metadata.decode", put("metadata.decode", None), "MLA241"),
    ("forgotten record", "metadata.prefill", put("metadata.prefill", None), "MLA241"),
    *rows("metadata.decode.block_table", "MLA107 MLA331", "metadata.decode.seq_lens"),
    *rows("metadata.decode.seq_lens", "MLA107 MLA331", "metadata.decode.block_table"),
    *elements("metadata.decode.seq_lens", 1, "MLA333"),
    ("swapped rows", "metadata.decode.seq_lens", flip("metadata.decode.seq_lens"), "MLA333"),
    ("swapped rows", "metadata.decode.block_table", flip("metadata.decode.block_table"), "MLA335"),
    *elements("metadata.decode.block_table", (0, 0), "MLA335"),
    ("cached for total", "metadata.decode.seq_lens", put("metadata.decode.seq_lens", tensor([7, 4])), "MLA333"),
    ("one too few", "metadata.prefill.max_query_len", shift("metadata.prefill.max_query_len", -1), "MLA261"),
    *rows("metadata.prefill.block_table", "MLA107"),
    *rows("metadata.prefill.query_start_loc", "MLA107"),
    *rows("metadata.prefill.query_lens_cpu", "MLA107 MLA262"),
    *elements("metadata.prefill.query_lens_cpu", 0, "MLA262"),
    *elements("metadata.prefill.query_start_loc", 1, "MLA263"),
    *elements("metadata.prefill.block_table", (0, 0), "MLA264"),
    (
        "starts above 0",
        "metadata.prefill.query_start_loc",
        put("metadata.prefill.query_start_loc", lambda old: old + 4),
        "MLA263",
    ),
    ("swapped rows", "metadata.prefill.block_table", flip("metadata.prefill.block_table"), "MLA264"),
    ("swapped rows", "metadata.prefill.query_lens_cpu", flip("metadata.prefill.query_lens_cpu"), "MLA262"),
    (
        "request/token confusion",
        "metadata.prefill.block_table",
        lambda subject: put("metadata.prefill.block_table", subject.batch.block_table_tensor[:3])(subject),
        "MLA264",
    ),
)
SPARSE: tuple[Line, ...] = (
    ("not causal", "batch.causal", put("batch.causal", False), "MLA257"),
    ("row of another request", "metadata.block_table", put("metadata.block_table", lambda old: old * 0), "MLA255"),
    *shifts("metadata.prefill_max_seq_len", "MLA242", "MLA242"),
    ("forgotten count", "metadata.prefill_max_seq_len", put("metadata.prefill_max_seq_len", 0), "MLA242"),
    ("one too few", "metadata.decode_max_query_len", shift("metadata.decode_max_query_len", -1), "MLA243"),
    ("forgotten count", "metadata.decode_max_query_len", put("metadata.decode_max_query_len", 0), "MLA243"),
    *rows("metadata.req_id_per_token", "MLA107 MLA251"),
    *rows("metadata.block_table", "MLA107"),
    *rows("metadata.seq_lens", "MLA107"),
    *elements("metadata.req_id_per_token", 6, "MLA253"),
    ("swapped rows", "metadata.req_id_per_token", flip("metadata.req_id_per_token"), "MLA253"),
    (
        "request/token confusion",
        "metadata.req_id_per_token",
        put("metadata.req_id_per_token", lambda old: old * 0),
        "MLA253",
    ),
    (
        "request/token confusion",
        "metadata.req_id_per_token",
        put("metadata.req_id_per_token", lambda old: old[:5]),
        "MLA251",
    ),
    ("rows of another kernel", "metadata.req_id_per_token", fact(query_rows=4), "MLA251"),
    (
        "dense without layer",
        "metadata.prefill.use_dense_mha",
        both(put("metadata.prefill.use_dense_mha", True), fact(layer_allows_dense=False)),
        "MLA249",
    ),
    (
        "dense without gather",
        "metadata.prefill.use_dense_mha",
        both(put("metadata.prefill.use_dense_mha", True), fact(gather_reads_layout=False)),
        "MLA249",
    ),
    ("skipped top-k", "metadata.prefill.use_dense_mha", fact(topk_skipped=True), "MLA249"),
)
AITER: tuple[Line, ...] = (
    *rows("metadata.qo_indptr", "MLA107 MLA251", "metadata.paged_kv_indptr"),
    *rows("metadata.paged_kv_indptr", "MLA107 MLA251", "metadata.qo_indptr"),
    *rows("metadata.paged_kv_last_page_len", "MLA107 MLA251"),
    ("too small", "metadata.paged_kv_indices", cut("metadata.paged_kv_indices"), "MLA381"),
    *elements("metadata.paged_kv_indptr", 3, "MLA383"),
    *elements("metadata.qo_indptr", 3, "MLA383"),
    *elements("metadata.paged_kv_last_page_len", 3, "MLA383"),
    (
        "request/token confusion",
        "metadata.qo_indptr",
        lambda subject: put("metadata.qo_indptr", subject.batch.query_start_loc)(subject),
        "MLA107 MLA251",
    ),
    ("swapped rows", "metadata.paged_kv_indptr", flip("metadata.paged_kv_indptr"), "MLA383"),
    ("starts above 0", "metadata.paged_kv_indptr", put("metadata.paged_kv_indptr", lambda old: old + 1), "MLA383"),
    ("wrong unit", "metadata.paged_kv_indptr", put("metadata.paged_kv_indptr", lambda old: old * legal.TOPK), "MLA383"),
    ("not clamped", "metadata.paged_kv_indptr", put("metadata.topk_tokens", 4), "MLA383"),
    ("forgotten", "metadata.qo_indptr", put("metadata.qo_indptr", None), "MLA381"),
    ("forgotten", "metadata.paged_kv_indices", put("metadata.paged_kv_indices", None), "MLA381"),
    ("forgotten", "metadata.paged_kv_last_page_len", put("metadata.paged_kv_last_page_len", None), "MLA381"),
    *(
        ("set in part", f"metadata.{name}", put(f"metadata.{name}", tensor([0])), "MLA382", f"metadata.{other}")
        for name, other in (
            ("work_indptr", "work_meta_data"),
            ("reduce_indptr", "work_meta_data"),
            ("work_meta_data", "work_indptr"),
        )
    ),
)
OTHERS: tuple[tuple[str, Maker, tuple[Line, ...]], ...] = (
    ("splits", legal.splits, (*rows("metadata.decode.num_splits", "MLA332"),)),
    (
        "pages",
        legal.pages,
        (
            *elements("metadata.decode.paged_kv_indptr", 1, "MLA384"),
            *elements("metadata.decode.paged_kv_last_page_len", 0, "MLA384"),
            (
                "wrong unit",
                "metadata.decode.paged_kv_indptr",
                put("metadata.decode.paged_kv_indptr", tensor([0, 9, 13])),
                "MLA384",
            ),
        ),
    ),
    (
        "all decodes",
        legal.all_decodes,
        (
            *(
                ("not all decodes", f"metadata.{name}", shift(f"metadata.{name}", by), "MLA252")
                for name, by in (("num_decodes", -1), ("num_prefills", 1), ("num_decode_tokens", -1))
            ),
        ),
    ),
    (
        "dummy step",
        legal.dummy,
        (
            ("stale element", "batch.positions", poke("batch.positions", 0, 116), "MLA215"),
            ("stale element", "batch.slot_mapping", poke("batch.slot_mapping", 1, 4), "MLA215"),
        ),
    ),
    (
        "round robin",
        legal.round_robin,
        (("local for global", "batch.positions", put("batch.positions", tensor([0, 1, 2], "int64")), "MLA216"),),
    ),
    (
        "flagged",
        legal.flagged,
        (
            ("wrong flag", "batch.is_prefilling", poke("batch.is_prefilling", 1, 1), "MLA235", "metadata.num_decodes"),
            *rows("batch.is_prefilling", "MLA210"),
        ),
    ),
)

DCP: tuple[Line, ...] = (
    ("global for local", "batch.dcp_local_seq_lens", put("batch.dcp_local_seq_lens", lambda old: old * 2), "MLA218"),
)

TABLES: tuple[tuple[str, Maker, tuple[Line, ...]], ...] = (
    ("dense", legal.BASES["dense"], (*BATCH, *DENSE)),
    ("dense, DCP", legal.BASES["dense, DCP"], DCP),
    ("padded", legal.padded, PADDED),
    ("sparse", legal.BASES["sparse"], SPARSE),
    ("aiter", legal.BASES["aiter"], AITER),
    *OTHERS,
)
