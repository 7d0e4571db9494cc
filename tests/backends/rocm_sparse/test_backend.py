"""The ROCm sparse backend as a whole on the reference provider: records, indexer and attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mla_contract.adapters.fault import InvalidBatch
from mla_contract.backends.sparse.config import SparseConfig
from mla_contract.backends.sparse.indexer import padded_places
from mla_contract.backends.sparse.workspace import LocalWorkspace
from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.step.trace import BuildTrace, addresses_of
from mla_contract.errors import ContractError, InvalidContract
from mla_contract.runtime.check import check_metadata
from mla_contract.testing.records import PlainBatch
from tests.backends.sparse.steps import (
    REFERENCE,
    SMALL,
    arrays_of,
    drawn,
    naive_attention,
    naive_topk,
    ordered,
    step_batch,
    token_padded,
)
from tests.backends.whole import WholeRocmSparse

TIGHT = replace(SMALL, topk_tokens=32, max_num_batched_tokens=512, max_num_seqs=16, max_capture_size=16)
MULTI = replace(TIGHT, next_n=3)
NATIVE = replace(MULTI, native_decode=True)
CHUNKED = replace(TIGHT, logits_bytes=4 * 2000, max_model_len=512, indexer_rows=512)

BATCHES = {
    "decodes": ((1, 1, 1), (31, 32, 33)),
    "fresh": ((7, 40), (7, 40)),
    "mixed": ((1, 1, 5, 30), (100, 31, 60, 30)),
    "one": ((1,), (1,)),
    "padded": ((1, 1, 0, 0), (40, 33, 0, 0)),
    "multi": ((3, 3, 3), (40, 32, 90)),
    "multi, ragged": ((3, 1, 2), (40, 32, 90)),
    "multi, requests padded": ((3, 3, 0), (40, 32, 0)),
    "multi, uniformly padded": ((3, 3, 3), (40, 32, 0)),
    "multi, mixed": ((3, 3, 9, 20), (40, 35, 60, 20)),
    "all padding": ((0, 0), (0, 0)),
}


def backend(config: SparseConfig) -> WholeRocmSparse:
    """Return a backend that was profiled and whose workspace is locked."""
    workspace = LocalWorkspace()
    made = WholeRocmSparse(config, workspace, providers=REFERENCE)
    made.indexer.run(arrays_of(step_batch((1,), (1,), config), config).inputs, None, torch.zeros(0, dtype=torch.int32))
    workspace.lock()
    return made


def check(made: WholeRocmSparse, of: PlainBatch) -> None:
    """Assert that records keep the contract, and that selections and outputs are those of the naive computation."""
    config = made.config
    metadata, indexer = made.builder.build_pair(of)
    trace = BuildTrace(indexer=indexer)
    for record in (metadata, indexer):
        known = {"batch": of, "declaration": made.declaration, "facts": config.facts, "trace": trace}
        assert [one.render() for one in check_metadata(record, **known, level=Level.VALUES)] == []  # type: ignore[arg-type]
    arrays = arrays_of(of, config)
    made.indexer.run(arrays.inputs, indexer, arrays.topk)
    out = made.attention.forward_mqa(arrays.q, arrays.kv_cache, arrays.topk, metadata)
    wanted = naive_topk(of, arrays, config)
    live = len(wanted)
    assert [set(row[row >= 0].tolist()) for row in arrays.topk[:live]] == wanted
    assert torch.all(arrays.topk[live:] == -1)
    torch.testing.assert_close(out[:live].double(), naive_attention(of, arrays, wanted, config), atol=1e-5, rtol=1e-5)
    assert torch.all(out[live:] == 0)


@pytest.mark.parametrize("config", [TIGHT, MULTI, NATIVE, CHUNKED], ids=["plain", "flattened", "native", "chunked"])
@pytest.mark.parametrize("name", BATCHES)
def test_backend_batch_keeps_the_contract_and_equals_naive(name: str, config: SparseConfig) -> None:
    """Every shape of batch, padding of both kinds included, yields sound records and naive results."""
    check(backend(config), step_batch(*ordered(*BATCHES[name], config.next_n), config))


@pytest.mark.parametrize("config", [TIGHT, NATIVE], ids=["plain", "native"])
@pytest.mark.parametrize("seed", range(8))
def test_backend_drawn_batch_keeps_the_contract_and_equals_naive(seed: int, config: SparseConfig) -> None:
    """Random batches in the engine's order do, too."""
    check(backend(config), step_batch(*drawn(seed, config.next_n), config))


def test_backend_native_uniform_keeps_rows_and_ragged_is_flattened() -> None:
    """A row for each request is kept only where all queries have one length."""
    made = backend(NATIVE)
    uniform = made.builder.build_pair(step_batch((3, 3), (40, 32), NATIVE))[1]
    ragged = made.builder.build_pair(step_batch((3, 2), (40, 32), NATIVE))[1]
    assert uniform.decode is not None and ragged.decode is not None
    assert tuple(uniform.decode.seq_lens.shape) == (2, 3)
    assert tuple(ragged.decode.seq_lens.shape) == (5,)


def test_backend_stale_step_leaves_nothing_behind() -> None:
    """A short step after a long one repeats the total in every tail, and a live row is not touched by padding."""
    made = backend(NATIVE)
    check(made, step_batch((3, 3, 9, 20), (40, 35, 60, 20), NATIVE))
    check(made, step_batch((3, 3, 0), (40, 32, 0), NATIVE))
    offsets = made.builder.lowering.buffers.buffer("sparse_start_loc")
    assert torch.all(offsets[6:] == offsets[6])


def test_backend_padded_tokens_without_requests_select_nothing() -> None:
    """Tokens that are padded behind the last offset are empty rows; their top-k does not land on live rows."""
    made, of = backend(NATIVE), token_padded(step_batch((3, 3), (40, 32), NATIVE), 12)
    metadata, indexer = made.builder.build_pair(of)
    assert torch.all(metadata.paged_kv_indptr[6:] == metadata.paged_kv_indptr[6])
    arrays = arrays_of(of, NATIVE)
    made.indexer.run(arrays.inputs, indexer, arrays.topk)
    assert [set(row[row >= 0].tolist()) for row in arrays.topk[:6]] == naive_topk(of, arrays, NATIVE)
    assert torch.all(arrays.topk[6:] == -1)


def test_padded_places_ragged_rows_end_with_their_query() -> None:
    """In rows of 3 tokens a query of 2 takes the last two; a padding token goes behind all rows."""
    indexer = backend(MULTI).builder.build_pair(token_padded(step_batch((3, 2), (40, 32), MULTI), 6))[1]
    assert padded_places(indexer, 2, 3).tolist() == [0, 1, 2, 4, 5, 6]


def test_builder_two_steps_keep_every_address() -> None:
    """Two builds of one shape return the same memory, so that a captured graph stays valid (MLA247)."""
    builder = backend(TIGHT).builder
    names = ("req_id_per_token", "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
    first, second = (step_batch((1, 1), lens, TIGHT) for lens in ((30, 40), (31, 41)))
    captured = addresses_of(builder.build(first), names)
    again = builder.build(second)
    assert check_metadata(again, batch=second, trace=BuildTrace(captured=captured)) == ()
    other = backend(TIGHT).builder.build(second)
    found = check_metadata(other, batch=second, trace=BuildTrace(captured=captured))
    assert {one.code for one in found} == {"MLA247"}


def test_builder_dense_prefill_describes_decode_rows_only() -> None:
    """While short prefills attend densely, arrays by token have the rows of the decodes; a long prefill takes all."""
    config = replace(TIGHT, dense_prefill=True, context_rows=256, context_tokens=8192)
    made = backend(config)
    for queries, lens, rows in (((1, 1, 20), (50, 40, 30), 2), ((1, 1, 20), (50, 40, 60), 22)):
        of = step_batch(queries, lens, config)
        metadata = made.builder.build(of)
        assert metadata.num_kernel_rows == rows
        assert metadata.prefill is not None and metadata.prefill.use_dense_mha == (rows == 2)
        facts = replace(config.facts, query_rows=rows)
        found = check_metadata(metadata, batch=of, declaration=made.declaration, facts=facts, level=Level.VALUES)
        assert [one.render() for one in found] == []


def test_forward_mqa_other_rows_are_refused() -> None:
    """Queries of another number of rows break MLA251 before anything is computed; the right number is accepted."""
    made, of = backend(TIGHT), step_batch((1, 1), (30, 40), TIGHT)
    metadata, arrays = made.builder.build(of), arrays_of(of, TIGHT)
    topk = torch.zeros(3, TIGHT.topk_tokens, dtype=torch.int32)
    with pytest.raises(ContractError, match="MLA251"):
        made.attention.forward_mqa(torch.zeros(3, 2, 24), arrays.kv_cache, topk, metadata)
    assert made.attention.forward_mqa(arrays.q, arrays.kv_cache, topk[:2], metadata).shape == (2, 2, 16)


def test_builder_batch_without_host_lengths_is_refused() -> None:
    """Without host lengths the builder would have to read the device; it says so instead."""
    builder, of = backend(TIGHT).builder, step_batch((1,), (8,), TIGHT)
    with pytest.raises(InvalidContract, match="seq_lens_cpu_upper_bound"):
        builder.build(replace(of, seq_lens_cpu_upper_bound=None))
    assert builder.build(of).num_decodes == 1


@pytest.mark.parametrize("lens", [((1, 1), (8, 9)), ((1, 9), (8, 9))], ids=["plain", "mixed"])
def test_builder_shared_requests_are_refused(lens: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Under decode context parallelism a rank holds a part of each request, which is refused by name."""
    builder, of = backend(TIGHT).builder, step_batch(*lens, TIGHT)
    with pytest.raises(InvalidContract, match="decode context parallelism"):
        builder.build(replace(of, dcp_local_seq_lens=of.seq_lens // 2))
    assert builder.build(of).num_reqs == 2


def test_backend_many_heads_and_a_quantised_cache_equal_naive() -> None:
    """128 heads over a cache in e4m3 with a scale: outputs are those of the dequantised cache."""
    config = replace(TIGHT, num_heads=128, kv_dtype=torch.float8_e4m3fn)
    made, of = backend(config), step_batch((1, 1, 5, 30), (100, 31, 60, 30), config)
    metadata, indexer = made.builder.build_pair(of)
    arrays, scale = arrays_of(of, config), torch.tensor([1.25])
    cache = arrays.kv_cache.to(config.kv_dtype)
    made.indexer.run(arrays.inputs, indexer, arrays.topk)
    out = made.attention.forward_mqa(arrays.q, cache, arrays.topk, metadata, kv_scale=scale)
    arrays.kv_cache = cache.float() * scale
    wanted = naive_attention(of, arrays, naive_topk(of, arrays, config), config)
    torch.testing.assert_close(out.double(), wanted, atol=1e-5, rtol=1e-5)


def test_builder_more_requests_than_capacity_is_refused() -> None:
    """A batch beyond the buffers is an error that names the buffer; one that fills them is accepted."""
    builder = backend(TIGHT).builder
    with pytest.raises(InvalidBatch, match="buffer"):
        builder.build(step_batch((1,) * 17, (9,) * 17, TIGHT))
    assert builder.build(step_batch((1,) * 16, (9,) * 16, TIGHT)).num_reqs == 16
