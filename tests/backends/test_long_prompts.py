"""The second fault of the field: above some length, prompts came out as garbage, because gathered keys were lost.

What is computed: for each prompt the last 256 query tokens before each quarter of it, all earlier tokens being cached
context, so that keys have their real number while queries are few. One head of 16 elements, top-k 32, float32. The
unchunked computation scores all keys in one call and knows neither chunks nor plans nor block tables.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.backends.sparse.config import SparseConfig
from mla_contract.backends.sparse.indexer import GatheredKeys, IndexerInputs, SparseIndexer
from mla_contract.backends.sparse.indexer_metadata import IndexerChunkRecord
from mla_contract.contract.schema.provider import ChunkLogits, SparseAttention, TopkRows
from mla_contract.contract.schema.workspace import WorkspacePlan
from mla_contract.errors import ContractError
from mla_contract.runtime.check import check_metadata
from mla_contract.testing.records import PlainBatch
from tests.backends.guard import GuardedProvider
from tests.backends.reservations import KnownWorkspace, workspace_trace
from tests.backends.sparse.steps import FLOAT_KEYS, step_batch
from tests.backends.whole import WholeRocmSparse

LENGTHS = (20_000, 40_000, 60_000, 80_000, 100_000)
QUERIES = 256
TOPK = 32
REFERENCE = ReferenceProvider()


def config_of(length: int, *, sub_chunks: int, buffers: float) -> SparseConfig:
    """Return a configuration in which 256 queries of a prompt of ``length`` are cut into so many sub-chunks.

    Args:
        length: Tokens of the longest prompt.
        sub_chunks: Sub-chunks of its queries.
        buffers: Rows of the key buffer, in lengths of the longest prompt.
    """
    return SparseConfig(
        max_num_seqs=2,
        max_num_batched_tokens=2 * QUERIES,
        max_model_len=length,
        topk_tokens=TOPK,
        num_heads=1,
        width=16,
        value_width=8,
        softmax_scale=0.25,
        q_dtype=torch.float32,
        kv_dtype=torch.float32,
        out_dtype=torch.float32,
        index_heads=1,
        index_format=FLOAT_KEYS,
        indexer_rows=int(buffers * length),
        logits_bytes=4 * length * -(-QUERIES // sub_chunks),
    )


class Layer:
    """Tensors of one layer for prompts of given lengths, of which the last queries are new."""

    def __init__(self, lens: tuple[int, ...]) -> None:
        generator = torch.Generator().manual_seed(sum(lens))
        self.lens = lens
        self.batch: PlainBatch = step_batch([QUERIES] * len(lens), lens, config_of(max(lens), sub_chunks=1, buffers=1))
        blocks, tokens = int(self.batch.block_table_tensor.max()) + 1, QUERIES * len(lens)
        self.cache = torch.randn(blocks, 64, 16, generator=generator)
        self.kv = torch.randn(blocks * 64, 16, generator=generator)
        self.q = torch.randn(tokens, 1, 16, generator=generator)
        self.keys = torch.randn(tokens, 16, generator=generator)
        self.weights = torch.randn(tokens, 1, generator=generator).abs()

    def inputs(self) -> IndexerInputs:
        """Return the indexer's inputs, with a cache in which the new keys are not yet written."""
        return IndexerInputs(self.q, self.keys, self.weights, self.cache.clone())


@cache
def layer_of(lens: tuple[int, ...]) -> Layer:
    """Return the layer of these prompts; the last few are kept."""
    return Layer(lens)


def digest(*arrays: Tensor) -> str:
    """Return the SHA-256 of the elements."""
    return hashlib.sha256(b"".join(array.contiguous().numpy().tobytes() for array in arrays)).hexdigest()


def unchunked(layer: Layer) -> tuple[str, str]:
    """Return the digests of selections and outputs, prompt by prompt in one call each."""
    picked, values = [], []
    for row, length in enumerate(layer.lens):
        tokens = slice(row * QUERIES, (row + 1) * QUERIES)
        first = int(layer.batch.block_table_tensor[row, 0]) * 64
        keys = layer.cache.view(-1, 16)[first : first + length].clone()
        keys[length - QUERIES :] = layer.keys[tokens]
        ends = torch.arange(length - QUERIES + 1, length + 1, dtype=torch.int32)
        starts = torch.zeros_like(ends)
        q, weights = layer.q[tokens], layer.weights[tokens]
        logits = REFERENCE.run(ChunkLogits(q=q, k=keys, k_scale=None, weights=weights, starts=starts, ends=ends))
        topk, out = torch.empty(QUERIES, TOPK, dtype=torch.int32), torch.empty(QUERIES, 1, 8)
        REFERENCE.run(TopkRows(logits=logits, starts=starts, ends=ends, topk=TOPK, out=topk))
        offsets = torch.arange(QUERIES + 1, dtype=torch.int32) * TOPK
        slots = (topk + first).view(-1)
        REFERENCE.run(
            SparseAttention(q=q, kv_cache=layer.kv, kv_indptr=offsets, kv_indices=slots, out=out, softmax_scale=0.25)
        )
        picked.append(topk)
        values.append(out)
    return digest(*picked), digest(*values)


def chunked(layer: Layer, config: SparseConfig) -> tuple[tuple[str, str], list[bool]]:
    """Return the digests of selections and outputs of the backend, and whether each sub-chunk reuses keys."""
    workspace = KnownWorkspace()
    made = WholeRocmSparse(config, workspace, providers=(GuardedProvider(REFERENCE, workspace),))
    made.profile()
    workspace.lock()
    metadata, indexer = made.builder.build_pair(layer.batch)
    assert check_metadata(indexer, batch=layer.batch, facts=config.facts) == ()
    topk = torch.full((len(layer.q), TOPK), -7, dtype=torch.int32)
    made.indexer.run(layer.inputs(), indexer, topk)
    out = made.attention.forward_mqa(layer.q, layer.kv, topk, metadata)
    assert indexer.prefill is not None
    return (digest(topk), digest(out)), [chunk.skip_kv_gather for chunk in indexer.prefill.chunks]


@pytest.mark.slow
@pytest.mark.parametrize("length", LENGTHS)
def test_long_prompt_every_budget_and_buffer_gives_the_unchunked_bits(length: int) -> None:
    """Selections and float32 outputs have one SHA-256 for 1 to 64 sub-chunks, at each quarter of the prompt."""
    for quarter in (1, 2, 3, 4):
        layer = Layer((length * quarter // 4,))
        wanted = unchunked(layer)
        for sub_chunks, buffers in ((1, 1), (2, 1), (7, 1.5), (64, 4)):
            got, skips = chunked(layer, config_of(layer.lens[0], sub_chunks=sub_chunks, buffers=buffers))
            assert got == wanted, (length, quarter, sub_chunks)
            assert skips[0] is False and all(skips[1:])
            assert len(skips) >= sub_chunks


@pytest.mark.slow
@pytest.mark.parametrize("length", LENGTHS)
def test_long_prompts_together_and_apart_give_the_unchunked_bits(length: int) -> None:
    """Two prompts in one gather, and each in its own, yield the same bits."""
    layer = Layer((length, length // 2))
    wanted = unchunked(layer)
    runs = set()
    for sub_chunks, buffers in ((1, 1), (8, 1), (1, 2)):
        config = config_of(length, sub_chunks=sub_chunks, buffers=buffers)
        if buffers == 2:
            config = replace(config, logits_bytes=8 * config.logits_bytes)
        got, skips = chunked(layer, config)
        assert got == wanted, (length, sub_chunks, buffers)
        runs.add(skips.count(False))
    assert runs == {1, 2}


class Unfilled(SparseIndexer):
    """Takes a new buffer for each chunk and gathers only where the flag says so: later chunks score rubbish."""

    def _keys(self, chunk: IndexerChunkRecord, cache: Tensor, buffer: GatheredKeys) -> GatheredKeys:
        fresh = buffer.leading(chunk.total_seq_lens)
        if chunk.skip_kv_gather:
            fresh = GatheredKeys(torch.empty_like(fresh.values), None)
        return super()._keys(chunk, cache, fresh)


class Unmanaged(SparseIndexer):
    """Ignores the flag: gathers every chunk into a new buffer that no profiling run has seen."""

    def _keys(self, chunk: IndexerChunkRecord, cache: Tensor, buffer: GatheredKeys) -> GatheredKeys:
        fresh = GatheredKeys(torch.empty(chunk.total_seq_lens, 16), None)
        return super()._keys(replace(chunk, skip_kv_gather=False), cache, fresh)


class UnderReserved(SparseIndexer):
    """Reserves half of the keys that a chunk may have."""

    def __init__(self, config: SparseConfig, manager: KnownWorkspace, providers: tuple[GuardedProvider, ...]) -> None:
        super().__init__(config, manager, providers)
        keys = self.scratch.prefill.requests[0]
        half = WorkspacePlan((replace(keys, shape=(keys.shape[0] // 2, keys.shape[1])),))
        self.scratch = replace(self.scratch, prefill=half)


SAFE = 24_000
"""Tokens of the prompt that the faulty consumers get: above the length from which the field saw garbage."""


def run_faulty(cls: type[SparseIndexer]) -> tuple[Tensor, ContractError | None]:
    """Return the selections of a consumer, -7 where none was written, and the breach that stopped it."""
    config = config_of(SAFE, sub_chunks=4, buffers=1)
    layer, workspace = layer_of((SAFE,)), KnownWorkspace()
    made = WholeRocmSparse(config, workspace, providers=REFERENCE_ONLY)
    made.profile()
    workspace.lock()
    indexer = cls(config, workspace, (GuardedProvider(REFERENCE, workspace),))
    topk = torch.full((QUERIES, TOPK), -7, dtype=torch.int32)
    try:
        indexer.run(layer.inputs(), made.builder.build_pair(layer.batch)[1], topk)
    except ContractError as error:
        return topk, error
    return topk, None


REFERENCE_ONLY = (REFERENCE,)


@pytest.mark.parametrize(
    ("cls", "code", "written"), [(Unfilled, "MLA362", 64), (Unmanaged, "MLA405", 0), (UnderReserved, "MLA363", 0)]
)
def test_faulty_consumer_is_stopped_before_a_wrong_selection_is_written(
    cls: type[SparseIndexer], code: str, written: int
) -> None:
    """The clause stops each of them: rows that were written before are right, all others are untouched."""
    topk, error = run_faulty(cls)
    right, none = run_faulty(SparseIndexer)
    assert none is None and int((right == -7).sum()) == 0
    assert error is not None and {one.code for one in error.violations} == {code}
    assert torch.equal(topk[:written], right[:written])
    assert torch.all(topk[written:] == -7)


def test_under_reservation_is_a_breach_while_profiling() -> None:
    """Half of the bytes break MLA401 before any prompt comes; the plan's own bytes do not."""
    config = config_of(SAFE, sub_chunks=4, buffers=1)
    layer = layer_of((SAFE,))
    made = WholeRocmSparse(config, KnownWorkspace(), providers=REFERENCE_ONLY)
    metadata = made.builder.build(layer.batch)
    total = made.indexer.scratch.total_bytes
    for reserved, codes in ((total // 2, {"MLA401"}), (total, set())):
        found = check_metadata(metadata, batch=layer.batch, trace=workspace_trace(config, reserved))
        assert {one.code for one in found} == codes
