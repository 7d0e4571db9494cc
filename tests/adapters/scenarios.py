"""Numbers from vLLM's own tests, as one table: batches, asserted splits, context plans and indexer chunks."""

from __future__ import annotations

from typing import NamedTuple

from mla_contract.adapters.split import Split


class SplitCase(NamedTuple):
    """A batch whose split vLLM's tests assert."""

    query_lens: tuple[int, ...]
    threshold: int
    uniform: bool
    num_tokens: int
    expected: Split
    is_prefilling: tuple[bool, ...] | None = None
    short_extends_decode: bool = True


class ContextCase(NamedTuple):
    """Contexts and a workspace, and each chunk's first request, starts and lengths as vLLM 0.33.0 plans them."""

    context_lens: tuple[int, ...]
    query_lens: tuple[int, ...]
    workspace_rows: int
    block_size: int
    size: int
    interleave: int
    chunks: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]


class ChunkCase(NamedTuple):
    """Indexer prefills whose chunks vLLM's tests assert: (first request, end, first query, end)."""

    states: tuple[int, ...]
    query_lens: tuple[int, ...]
    buffer_states: int
    logits_bytes: int
    chunks: tuple[tuple[int, int, int, int], ...]


class OrderCase(NamedTuple):
    """Requests as (scheduled, computed, prompt) tokens, and the order that vLLM's tests assert."""

    requests: tuple[tuple[int, int, int], ...]
    threshold: int
    order: tuple[int, ...]


BATCHES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "small_decode": ((1, 1), (32, 40)),
    "small_prefill": ((8, 8), (32, 40)),
    "mixed_small": ((1, 1, 5, 5), (32, 40, 48, 56)),
    "medium_decode": ((1, 1, 1, 1, 1, 1, 1, 1), (128, 256, 512, 1024, 128, 256, 512, 1024)),
    "medium_prefill": ((16, 16, 16, 16), (256, 512, 1024, 2048)),
    "mixed_medium": ((1, 1, 1, 7, 7, 7), (512, 1024, 2048, 512, 1024, 2048)),
    "large_decode": ((1,) * 32, (2048,) * 32),
    "large_prefill": ((32, 32, 32, 32, 32, 32, 32, 32), (4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096)),
    "mixed_large": ((1, 1, 1, 32, 32, 32), (1024, 2048, 4096, 1024, 2048, 4096)),
    "single_decode": ((1,), (1024,)),
    "single_prefill": ((64,), (1024,)),
    "small_encoder_prefill": ((32, 64, 128, 256), (32, 64, 128, 256)),
    "medium_encoder_prefill": ((256, 512, 1024, 2048), (256, 512, 1024, 2048)),
    "spec_decode_small": ((4, 4, 4, 4), (128, 256, 512, 1024)),
    "spec_decode_ragged_small": ((8, 3, 1, 5), (128, 256, 512, 1024)),
    "spec_decode_medium": ((8, 8, 8, 8, 8, 8), (512, 1024, 2048, 512, 1024, 2048)),
    "chunked_context_prefill": ((32, 8, 8, 16, 16, 8), (1568, 520, 8, 80, 96, 8)),
    "large_q_prefill": ((256, 256), (1024, 1024)),
    "large_q_pure_prefill": ((256, 256), (256, 256)),
    "large_decode_over_topk": ((1, 1), (256, 384)),
    "short_dense_mha": ((64, 128), (64, 128)),
    "short_context_dense_mha": ((64, 32), (128, 160)),
    "masked_mha": ((256,), (256,)),
    "masked_mha_chunked_context": ((256, 256), (448, 384)),
    "hisparse_mixed_router_shortcut": ((2, 2, 64), (2048, 2048, 192)),
    "rocm_metadata_sync_decode_only": ((1, 1), (16, 8)),
    "rocm_metadata_sync_mixed": ((1, 4), (16, 10)),
    "rocm_dense_prefill_decode_subset": ((1, 4), (16, 4)),
    "rocm_long_prefill_shared_sparse": ((1, 5), (16, 5)),
    "rocm_triton_sparse_forward": ((1, 5), (40, 20)),
    "kimi_k3_prefill_context": ((8, 4, 6, 5), (208, 52, 38, 5)),
    "ubatch_uniform_decode": ((1, 1, 1, 1, 1, 1, 1, 1), (128, 132, 136, 140, 144, 148, 152, 156)),
    "ubatch_split_request": ((1, 1, 10, 1, 1), (64, 96, 512, 32, 48)),
    "ubatch_aligned_prefills": ((6, 2, 4, 4), (6, 130, 260, 4)),
    "ubatch_split_first_and_last": ((3, 9, 3), (70, 300, 41)),
    "ubatch_trailing_prefill_spans_boundary": ((2, 20), (64, 300)),
    "ubatch_cudagraph_padding": ((1, 1, 1, 1, 1, 1), (64, 64, 64, 64, 64, 64)),
    "dsv4_swa_image_spans_0": ((30, 12), (30, 12)),
    "dsv4_swa_image_spans_1": ((26,), (26,)),
    "dsv4_swa_image_spans_2": ((16, 9), (40, 9)),
    "dsv4_swa_image_spans_3": ((7, 15), (7, 15)),
    "rocm_numeric_decode_topk128": ((1, 1, 1, 1), (1, 31, 127, 165)),
    "rocm_numeric_prefill_topk128": ((9, 13), (9, 145)),
    "rocm_numeric_mixed_topk128": ((1, 1, 7, 11), (17, 159, 7, 137)),
    "rocm_numeric_multi_token_topk128": ((3, 5), (141, 125)),
    "rocm_numeric_decode_topk256": ((1, 1, 1, 1), (1, 31, 255, 293)),
    "rocm_numeric_prefill_topk256": ((9, 13), (9, 273)),
    "rocm_numeric_mixed_topk256": ((1, 1, 7, 11), (17, 287, 7, 265)),
    "rocm_numeric_multi_token_topk256": ((3, 5), (269, 253)),
    "rocm_numeric_decode_topk2048": ((1, 1, 1, 1), (1, 31, 2047, 2085)),
    "rocm_numeric_prefill_topk2048": ((9, 13), (9, 2065)),
    "rocm_numeric_mixed_topk2048": ((1, 1, 7, 11), (17, 2079, 7, 2057)),
    "rocm_numeric_multi_token_topk2048": ((3, 5), (2061, 2045)),
    "rocm_fp8_persistent_golden": ((1,) * 128, (8192,) * 128),
}
"""Query lengths and sequence lengths by name."""

SPLITS: dict[str, SplitCase] = {
    "nonuniform_all_ones": SplitCase((1, 1, 1), 1, False, 3, Split(3, 0, 3, 0)),
    "nonuniform_all_short_decodes": SplitCase((1, 2, 1, 3, 2, 1, 2), 3, False, 12, Split(7, 0, 12, 0)),
    "nonuniform_all_prefills": SplitCase((4, 5, 6, 7), 3, False, 22, Split(0, 4, 0, 22)),
    "nonuniform_mixed_batch": SplitCase((2, 1, 3, 4, 5, 6, 7, 8), 4, False, 36, Split(4, 4, 10, 26)),
    "uniform_all_ones": SplitCase((1, 1, 1), 1, True, 3, Split(3, 0, 3, 0)),
    "uniform_short_extend": SplitCase(
        (1, 1), 1, True, 2, Split(1, 1, 1, 1), is_prefilling=(False, True), short_extends_decode=False
    ),
    "uniform_all_short_decodes": SplitCase((2, 2, 1, 3, 2, 1, 2), 3, True, 13, Split(2, 5, 4, 9)),
    "uniform_all_prefills": SplitCase((4, 5, 6, 7), 3, True, 22, Split(0, 4, 0, 22)),
    "uniform_mixed_all_uniform_decodes": SplitCase((2, 2, 2, 4, 5, 6, 7, 8), 4, True, 36, Split(3, 5, 6, 30)),
    "uniform_mixed_non_uniform_decodes": SplitCase((2, 1, 2, 4, 5, 6, 7, 8), 4, True, 35, Split(1, 7, 2, 33)),
    "uniform_padded_batch_all_same": SplitCase((2, 2, 2, 0), 3, True, 8, Split(4, 0, 8, 0)),
    "flashmla_requires_uniform_decodes": SplitCase((1, 2, 3), 128, True, 6, Split(1, 2, 1, 5)),
    "spec_decodes_lead_short_prefill_tail": SplitCase((2, 2, 2, 2, 2, 2, 2, 2, 1), 2, True, 17, Split(8, 1, 16, 1)),
}

CONTEXTS: dict[str, ContextCase] = {
    "heterogeneous_long_plus_short": ContextCase(
        (960, 16, 16, 16, 16, 16, 16, 16),
        (4, 4, 4, 4, 4, 4, 4, 4),
        1024,
        16,
        1,
        1,
        ((0, (0, 0, 0, 0, 0), (960, 16, 16, 16, 16)), (5, (0, 0, 0), (16, 16, 16))),
    ),
    "single_request_split": ContextCase(
        (2048, 320), (4, 4), 1024, 16, 1, 1, ((0, (0,), (1024,)), (0, (1024,), (1024,)), (1, (0,), (320,)))
    ),
    "one_chunk_each": ContextCase(
        (1024, 1024, 1024), (4, 4, 4), 1024, 16, 1, 1, ((0, (0,), (1024,)), (1, (0,), (1024,)), (2, (0,), (1024,)))
    ),
    "unaligned_tails": ContextCase(
        (37, 1000, 5), (4, 4, 4), 1024, 16, 1, 1, ((0, (0, 0), (37, 976)), (1, (976, 0), (24, 5)))
    ),
    "zero_context_between_active": ContextCase(
        (4, 0, 2), (4, 4, 4), 1024, 16, 1, 1, ((0, (0,), (4,)), (2, (0,), (2,)))
    ),
    "tiny": ContextCase((1,), (4,), 1024, 16, 1, 1, ((0, (0,), (1,)),)),
    "continuation_first_request_only": ContextCase(
        (2048, 32, 32), (3, 5, 7), 1024, 16, 1, 1, ((0, (0,), (1024,)), (0, (1024,), (1024,)), (1, (0, 0), (32, 32)))
    ),
    "tail_splitting_minimizes_chunks": ContextCase(
        (768, 512, 512), (3, 5, 7), 1024, 16, 1, 1, ((0, (0, 0), (768, 256)), (1, (256, 0), (256, 512)))
    ),
    "contextless_prefills_skipped": ContextCase(
        (64, 0, 64, 0), (4, 4, 4, 4), 1024, 16, 1, 1, ((0, (0,), (64,)), (2, (0,), (64,)))
    ),
    "no_context": ContextCase((0, 0), (4, 4), 1024, 16, 1, 1, ()),
    "dcp2_interleave64": ContextCase(
        (3000, 200, 200),
        (4, 4, 4),
        1024,
        128,
        2,
        64,
        ((0, (0,), (1024,)), (0, (1024,), (1024,)), (0, (2048,), (952,)), (1, (0, 0), (200, 200))),
    ),
    "dcp4_non_virtual_block_aligned_prefix": ContextCase(
        (65, 96), (1, 1), 128, 64, 4, 1, ((0, (0,), (65,)), (1, (0,), (96,)))
    ),
    "kimi_k3_prefill_context": ContextCase(
        (200, 48, 32, 0), (8, 4, 6, 5), 128, 16, 1, 1, ((0, (0,), (128,)), (0, (128, 0), (72, 48)), (2, (0,), (32,)))
    ),
    "mla_chunked_context_prefill": ContextCase(
        (1536, 512, 0, 64, 80, 0),
        (32, 8, 8, 16, 16, 8),
        1024,
        16,
        1,
        1,
        ((0, (0,), (1024,)), (0, (1024, 0), (512, 512)), (3, (0, 0), (64, 80))),
    ),
}

INDEXER: tuple[ChunkCase, ...] = (
    ChunkCase((0,), (0,), 100, 1000, ()),
    ChunkCase((100, 100, 100), (10, 10, 10), 1000, 5000, ((0, 1, 0, 10), (1, 2, 0, 10), (2, 3, 0, 10))),
    ChunkCase((10, 10, 10), (5, 5, 5), 100, 10000, ((0, 3, 0, 15),)),
    ChunkCase((50, 50, 50), (1, 1, 1), 50, 1000000, ((0, 1, 0, 1), (1, 2, 0, 1), (2, 3, 0, 1))),
    ChunkCase((10, 10, 10), (5, 5, 5), 100, 1000, ((0, 2, 0, 10), (2, 3, 0, 5))),
    ChunkCase((1000, 50), (100, 5), 2000, 1000, (*((0, 1, row, row + 1) for row in range(100)), (1, 2, 0, 5))),
)

ORDERS: dict[str, OrderCase] = {
    "all_decodes": OrderCase(((1, 10, 10), (1, 20, 20), (1, 30, 30)), 1, (0, 1, 2)),
    "all_long_extends": OrderCase(((100, 100, 100), (200, 200, 200), (300, 300, 300)), 1, (0, 1, 2)),
    "mixed_decodes_long_extends": OrderCase(
        ((100, 100, 100), (1, 10, 10), (200, 200, 200), (1, 20, 20)), 1, (3, 1, 2, 0)
    ),
    "already_ordered": OrderCase(((1, 10, 10), (1, 20, 20), (100, 100, 100), (200, 0, 200)), 1, (0, 1, 2, 3)),
    "single_request": OrderCase(((1, 10, 10),), 1, (0,)),
    "higher_threshold": OrderCase(((2, 10, 10), (3, 20, 20), (5, 30, 30), (6, 40, 40)), 4, (0, 1, 2, 3)),
    "decodes_at_end": OrderCase(((100, 100, 100), (200, 200, 200), (1, 10, 10), (1, 20, 20)), 1, (2, 3, 0, 1)),
    "decode_long_extend_prefill": OrderCase(((100, 0, 100), (10, 50, 50), (1, 10, 10)), 1, (2, 1, 0)),
    "long_extend_prefill_only": OrderCase(((100, 0, 100), (10, 50, 50), (200, 0, 200), (20, 75, 75)), 1, (3, 1, 2, 0)),
    "complicated_mixed": OrderCase(
        (
            (1, 20, 20),
            (1, 50, 50),
            (374, 0, 374),
            (300, 20, 20),
            (1, 20, 20),
            (256, 0, 256),
            (1, 5, 5),
            (27, 0, 27),
            (1, 4, 4),
        ),
        1,
        (0, 1, 6, 8, 4, 3, 2, 7, 5),
    ),
    "new_request_single_token_prefill": OrderCase(
        ((100, 0, 100), (1, 0, 1), (50, 100, 100), (1, 10, 10)), 1, (3, 2, 0, 1)
    ),
    "multiple_new_requests_single_token_prefill": OrderCase(
        ((1, 0, 1), (1, 0, 1), (1, 50, 50), (200, 0, 200)), 1, (2, 1, 0, 3)
    ),
    "four_way_already_ordered": OrderCase(((1, 100, 100), (1, 50, 100), (10, 50, 100), (100, 0, 100)), 1, (0, 1, 2, 3)),
    "four_way_needs_reorder": OrderCase(((100, 0, 100), (1, 50, 100), (1, 100, 100), (10, 50, 100)), 1, (2, 1, 3, 0)),
    "four_way_multiple_short_extends": OrderCase(
        ((2, 100, 100), (2, 50, 200), (2, 75, 150), (2, 200, 200)), 2, (0, 3, 2, 1)
    ),
    "four_way_spec_decode_threshold": OrderCase(
        ((5, 100, 100), (5, 50, 100), (5, 0, 100), (10, 50, 100)), 5, (0, 1, 3, 2)
    ),
}

DECODE_LENS = ((1, 4, 3), (31, 104, 10), (31, 0, 0, 0, 101, 102, 103, 104, 8, 9, 10, 0))
"""Query lengths, sequence lengths, and per-token lengths in rows of 4."""

LOCAL_LENS = (
    (0, 1, 2, 3, 4, 7, 8, 17),
    4,
    2,
    ((0, 0, 0, 0), (1, 0, 0, 0), (2, 0, 0, 0), (2, 1, 0, 0), (2, 2, 0, 0), (2, 2, 2, 1), (2, 2, 2, 2), (5, 4, 4, 4)),
)
"""Lengths, ranks, interleave, and the lengths on each rank."""
