"""Steps for tests of whole backends: small configurations, batches with caches behind them, and a naive answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.backends.sparse.config import SparseConfig
from mla_contract.backends.sparse.indexer import IndexerInputs
from mla_contract.contract.schema.provider import IndexerCacheFormat
from mla_contract.testing.records import PlainBatch
from tests.contract.clauses.records import batch

FLOAT_KEYS = IndexerCacheFormat(head_dim=16, fp8_dtype=None)
SMALL = SparseConfig(
    max_num_seqs=128,
    max_num_batched_tokens=4096,
    max_model_len=8192,
    max_capture_size=128,
    block_size=16,
    topk_tokens=128,
    num_heads=2,
    width=24,
    value_width=16,
    softmax_scale=24**-0.5,
    q_dtype=torch.float32,
    kv_dtype=torch.float32,
    out_dtype=torch.float32,
    index_heads=2,
    index_format=FLOAT_KEYS,
    indexer_rows=40960,
)
"""Float32 throughout, so that a result can be compared with a naive one."""

REFERENCE = (ReferenceProvider(),)


def step_batch(query_lens: Sequence[int], seq_lens: Sequence[int], config: SparseConfig = SMALL) -> PlainBatch:
    """Return the batch of these lengths in blocks of the configuration's size."""
    return batch(query_lens, seq_lens, block=config.block_size)


def token_padded(of: PlainBatch, num_tokens: int) -> PlainBatch:
    """Return a batch whose tokens are padded and whose requests are not: offsets end at the live tokens."""
    more = num_tokens - of.num_actual_tokens
    slots = torch.cat([of.slot_mapping, torch.full((more,), -1, dtype=torch.int64)])
    return replace(of, num_actual_tokens=num_tokens, slot_mapping=slots, positions=None)


@dataclass
class Arrays:
    """The tensors of one layer in one step."""

    inputs: IndexerInputs
    q: Tensor
    kv_cache: Tensor
    topk: Tensor


def arrays_of(of: PlainBatch, config: SparseConfig, seed: int = 0) -> Arrays:
    """Return random tensors: caches that hold every block of the batch, the step's own keys not yet written."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    blocks = int(of.block_table_tensor.max()) + 1 if of.block_table_tensor.numel() else 1
    tokens, format = of.num_actual_tokens, config.index_format
    return Arrays(
        IndexerInputs(
            q=normal(tokens, config.index_heads, format.head_dim),
            k=normal(tokens, format.head_dim),
            weights=normal(tokens, config.index_heads),
            cache=normal(blocks, config.block_size, format.width),
        ),
        q=normal(tokens, config.num_heads, config.width),
        kv_cache=normal(blocks * config.block_size, config.width),
        topk=torch.full((tokens, config.topk_tokens), -7, dtype=torch.int32),
    )


def naive_topk(of: PlainBatch, arrays: Arrays, config: SparseConfig) -> list[set[int]]:
    """Return each live token's best positions, request by request; needs a float cache into which keys were written."""
    found: list[set[int]] = []
    flat = arrays.inputs.cache.reshape(-1, config.index_format.head_dim).double()
    for owner, position, token in _live(of):
        keys = flat[_slots(of, owner, position + 1, config)]
        q, weights = arrays.inputs.q[token].double(), arrays.inputs.weights[token].double()
        scores = (weights[:, None] * torch.relu(q @ keys.T)).sum(0)
        order = np.lexsort((np.arange(position + 1), -scores.numpy()))
        found.append(set(order[: config.topk_tokens].tolist()))
    return found


def naive_attention(of: PlainBatch, arrays: Arrays, chosen: Sequence[set[int]], config: SparseConfig) -> Tensor:
    """Return the attention of each live token by a mask over all its positions, in float64."""
    rows = []
    for (owner, position, token), best in zip(_live(of), chosen, strict=True):
        kv = arrays.kv_cache[_slots(of, owner, position + 1, config)].double()
        scores = arrays.q[token].double() @ kv.T * config.softmax_scale
        hidden = torch.ones(position + 1, dtype=torch.bool)
        hidden[list(best)] = False
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
        rows.append(weights @ kv[:, : config.value_width])
    return torch.stack(rows) if rows else torch.zeros(0, config.num_heads, config.value_width, dtype=torch.float64)


def _live(of: PlainBatch) -> list[tuple[int, int, int]]:
    """Return (request, position, token) of each live token."""
    found, offsets = [], of.query_start_loc_cpu.tolist()
    for owner, total in enumerate(of.seq_lens.tolist()):
        first, last = offsets[owner], offsets[owner + 1]
        found += [(owner, total - last + token, token) for token in range(first, last)] if total else []
    return found


def _slots(of: PlainBatch, owner: int, length: int, config: SparseConfig) -> Any:
    """Return the slots of a request's leading positions."""
    position = torch.arange(length)
    row = of.block_table_tensor[owner].long()
    return row[position // config.block_size] * config.block_size + position % config.block_size


def ordered(query_lens: Sequence[int], seq_lens: Sequence[int], threshold: int) -> tuple[list[int], list[int]]:
    """Return the requests in the order that the engine hands them over: decodes, long extends, fresh prompts."""
    rows = sorted(zip(query_lens, seq_lens, strict=True), key=lambda row: _order_class(row[0], row[1], threshold))
    return [query for query, _ in rows], [total for _, total in rows]


def _order_class(query: int, total: int, threshold: int) -> int:
    """Return the order class of one request; padding is last."""
    if total == 0:
        return 4
    return 3 if query == total else 2 if query > threshold else 0


def drawn(seed: int, threshold: int = 1, most: int = 12) -> tuple[list[int], list[int]]:
    """Return a random batch: decodes, extends and fresh prompts, in order."""
    rng = np.random.default_rng(seed)
    num_reqs = int(rng.integers(1, most))
    queries = [
        int(rng.integers(1, threshold + 1)) if rng.random() < 0.6 else int(rng.integers(1, 24)) for _ in range(num_reqs)
    ]
    totals = [query + int(rng.integers(0, 200)) * int(rng.random() < 0.8) for query in queries]
    return ordered(queries, totals, threshold)
