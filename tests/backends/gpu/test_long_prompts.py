"""Long prompts at real widths: whatever the chunk budget, the same positions are selected.

For each prompt the last 256 tokens are new, all earlier ones cached: keys have their real number while queries are few.
128 index dims, 64 index heads, 16 heads, top-k 2048, fp8 keys.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.backends.sparse.config import SparseConfig
from mla_contract.backends.sparse.indexer import IndexerInputs
from mla_contract.backends.sparse.workspace import LocalWorkspace
from mla_contract.contract.schema.provider import ChunkLogits, GatherIndexerK, KernelProvider, SparseAttention
from tests.backends.gpu.batches import StaticBatch
from tests.backends.whole import WholeRocmSparse

QUERIES = 256
BF16, FN = torch.bfloat16, torch.float8_e4m3fn


def config_of(length: int, sub_chunks: int, buffers: float) -> SparseConfig:
    """Return a configuration that cuts the new tokens into so many sub-chunks, with a buffer of so many lengths."""
    return SparseConfig(
        max_num_seqs=2,
        max_num_batched_tokens=2 * QUERIES,
        max_model_len=length,
        indexer_rows=int(buffers * length),
        logits_bytes=4 * length * -(-QUERIES // sub_chunks),
    )


def digest(array: Tensor) -> str:
    """Return the SHA-256 of the elements."""
    return hashlib.sha256(array.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("length", [20_000, 40_000, 60_000, 80_000, 100_000])
def test_long_prompt_every_budget_selects_the_same(kernels: KernelProvider, gpu: torch.device, length: int) -> None:
    """One SHA-256 of the selections and one of the outputs for 1 to 64 sub-chunks; the reference agrees."""
    torch.manual_seed(length)
    static = StaticBatch(1, QUERIES, length, gpu)
    of = static.step([QUERIES], [length])
    config = config_of(length, 1, 1)
    cache = torch.zeros(static.num_blocks, 64, config.index_format.width, dtype=torch.uint8, device=gpu)
    flat = cache.view(len(cache), -1)
    flat[:, : 64 * 128] = torch.randn(len(cache), 64 * 128, device=gpu).to(FN).view(torch.uint8)
    flat.view(torch.float32)[:, 64 * 128 // 4 :] = torch.rand(len(cache), 64, device=gpu) + 0.5
    inputs = IndexerInputs(
        q=torch.randn(QUERIES, 64, 128, device=gpu).to(FN),
        k=torch.randn(QUERIES, 128, device=gpu).to(BF16),
        weights=torch.randn(QUERIES, 64, device=gpu),
        cache=cache,
    )
    q, kv = torch.randn(QUERIES, 16, 576, device=gpu).to(BF16), torch.randn(len(cache) * 64, 576, device=gpu).to(BF16)
    found = set()
    for sub_chunks, buffers in ((1, 1.0), (2, 1.0), (7, 1.5), (64, 4.0)):
        workspace = LocalWorkspace(gpu)
        made = WholeRocmSparse(config_of(length, sub_chunks, buffers), workspace, gpu, providers=(kernels,))
        made.profile()
        workspace.lock()
        metadata, indexer = made.builder.build_pair(of)
        assert indexer.prefill is not None and len(indexer.prefill.chunks) >= sub_chunks
        topk = torch.full((QUERIES, config.topk_tokens), -7, dtype=torch.int32, device=gpu)
        made.indexer.run(inputs, indexer, topk)
        out = made.attention.forward_mqa(q, kv, topk, metadata)
        found.add((digest(topk), digest(out)))
    assert len(found) == 1
    last = SparseAttention(
        q=q[-4:],
        kv_cache=kv,
        kv_indptr=torch.arange(0, 4 * 2048 + 1, 2048, device=gpu, dtype=torch.int32),
        kv_indices=(topk[-4:] + 64).view(-1),
        out=torch.empty(4, 16, 512, device=gpu),
        softmax_scale=config.softmax_scale,
    )
    ReferenceProvider().run(last)
    assert float((out[-4:].float() - last.out).norm() / last.out.norm()) < 5e-3
    check_selection(inputs, of.block_table_tensor, topk, length)


def check_selection(inputs: IndexerInputs, table: Tensor, topk: Tensor, length: int) -> None:
    """Check the last token's selection: no position that is left out scores clearly above one that is selected."""
    reference, config = ReferenceProvider(), config_of(length, 1, 1)
    k_out = torch.empty(length, 128, dtype=FN, device=topk.device)
    scale_out = torch.empty(length, 1, device=topk.device)
    gather = GatherIndexerK(
        cache=inputs.cache,
        format=config.index_format,
        block_table=table,
        cu_seq_lens=torch.tensor([0, length], device=topk.device, dtype=torch.int32),
        num_keys=length,
        k_out=k_out,
        scale_out=scale_out,
    )
    reference.run(replace(gather))
    window = torch.tensor([[0], [length]], device=topk.device, dtype=torch.int32)
    q, weights = inputs.q[-1:], inputs.weights[-1:]
    chunk = ChunkLogits(q=q, k=k_out, k_scale=scale_out.view(-1), weights=weights, starts=window[0], ends=window[1])
    scores = reference.run(chunk)[0]
    chosen = torch.zeros(length, dtype=torch.bool, device=topk.device)
    chosen[topk[-1].long()] = True
    assert int(chosen.sum()) == config.topk_tokens
    assert float(scores[~chosen].max() - scores[chosen].min()) < 1e-3 * float(scores.abs().max())
