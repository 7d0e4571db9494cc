"""Faults made by hand in records that layers of their own read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mla_contract.contract.schema.layer_records import RingCompressorMetadata, StateRowsMetadata, WindowMetadata
from mla_contract.testing.context_records import tensor
from tests.lab import layer_records as legal
from tests.lab.changes import flip, poke, put
from tests.lab.fault_lines import Line, Maker, elements, planted, rows, shifts
from tests.lab.faults import PlantedFault

WINDOW: tuple[Line, ...] = (
    *elements("metadata.decode_swa_lens", 0, "MLA421"),
    *elements("metadata.prefill_swa_lens", 0, "MLA421"),
    *elements("metadata.decode_swa_indices", (0, 0, 0), "MLA422"),
    *elements("metadata.prefill_swa_indices", (0, 0, 0), "MLA422"),
    ("stale tail", "metadata.prefill_swa_indices", poke("metadata.prefill_swa_indices", (-4, 0, -1), 5), "MLA422"),
    ("another request", "metadata.decode_swa_indices", flip("metadata.decode_swa_indices"), "MLA422"),
    ("wrong flag", "metadata.is_valid_token", poke("metadata.is_valid_token", 1, 0), "MLA423"),
    *elements("metadata.prefill_gather_lens", 0, "MLA424"),
    *elements("metadata.prefill_query_lens_cpu", 0, "MLA424"),
    *elements("metadata.prefill_seq_lens", 0, "MLA424"),
    *elements("metadata.token_to_req_indices", 2, "MLA434"),
    *rows("metadata.decode_swa_lens", "MLA107"),
    *rows("metadata.prefill_gather_lens", "MLA107"),
    *shifts("metadata.num_decode_tokens", "MLA233 MLA107", "MLA233 MLA107"),
    ("dtype", "metadata.decode_swa_indices", put("metadata.decode_swa_indices", lambda old: old.long()), "MLA105"),
)
STATES: tuple[Line, ...] = (
    *elements("metadata.c128a_decode_topk_lens", 0, "MLA431"),
    *elements("metadata.c128a_global_decode_topk_indices", (0, 0, 0), "MLA431"),
    *elements("metadata.c128a_prefill_topk_indices", (0, 0), "MLA432"),
    *elements("metadata.slot_mapping", 1, "MLA433"),
    ("tokens for states", "metadata.slot_mapping", put("metadata.slot_mapping", lambda old: old * 2), "MLA433"),
    *elements("metadata.req_id_per_token", 2, "MLA434"),
    *rows("metadata.c128a_decode_topk_lens", "MLA107", "metadata.c128a_global_decode_topk_indices"),
)
RING: tuple[Line, ...] = (
    *elements("metadata.slot_mapping", 1, "MLA435"),
    ("stale owners", "metadata.token_to_req_indices", poke("metadata.token_to_req_indices", 0, 1), "MLA434"),
    ("dtype", "metadata.slot_mapping", put("metadata.slot_mapping", lambda old: old.int()), "MLA105"),
    (
        "dtype",
        "metadata.token_to_req_indices",
        put("metadata.token_to_req_indices", tensor([0] * 16, "int64")),
        "MLA105",
    ),
)
TABLES: tuple[tuple[str, Maker, type, tuple[Line, ...]], ...] = (
    ("window", legal.window, WindowMetadata, WINDOW),
    ("state rows", legal.state_rows, StateRowsMetadata, STATES),
    ("ring", legal.ring, RingCompressorMetadata, RING),
)


def layer_faults() -> Iterator[PlantedFault]:
    """Yield every fault made by hand in these records."""
    for base, make, protocol, lines in TABLES:
        yield from (replace(fault, protocol=protocol) for fault in planted(base, make, lines))
