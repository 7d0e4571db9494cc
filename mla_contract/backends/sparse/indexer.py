"""The indexer op: writes keys, scores prefill chunks and decodes, and leaves each token's best positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from mla_contract.backends.kernels import registry
from mla_contract.backends.sparse.indexer_metadata import (
    IndexerChunkRecord,
    IndexerDecodeRecord,
    SparseIndexerMetadata,
)
from mla_contract.backends.sparse.workspace import plan_workspace, take
from mla_contract.contract.schema.provider import (
    ChunkLogits,
    GatherIndexerK,
    KernelProvider,
    PagedLogits,
    TopkRows,
    WriteIndexerK,
)
from mla_contract.contract.schema.workspace import WorkspaceManager
from mla_contract.contract.step.facts import Facts
from mla_contract.runtime.check import validate_metadata

if TYPE_CHECKING:
    from mla_contract.backends.sparse.config import SparseConfig

NOTHING = -1
"""Marks "no position" in a top-k row."""


class GatheredKeys(NamedTuple):
    """The buffer that keys are gathered into: one for all chunks of a step."""

    values: Tensor
    scales: Tensor | None

    def leading(self, num_keys: int) -> GatheredKeys:
        """Return the part that a chunk fills."""
        return GatheredKeys(self.values[:num_keys], None if self.scales is None else self.scales[:num_keys])


class IndexerInputs(NamedTuple):
    """What one layer hands to the indexer in one step.

    Attributes:
        q: [num_tokens, heads, head_dim] queries; the scale of quantised ones is folded into ``weights``.
        k: [num_tokens, head_dim] keys of the step's tokens.
        weights: [num_tokens, heads] float32.
        cache: The indexer's cache of this layer.
    """

    q: Tensor
    k: Tensor
    weights: Tensor
    cache: Tensor


class SparseIndexer:
    """The indexer of one layer group.

    Attributes:
        stable: Whether ties of scores go to the smaller position.
    """

    def __init__(
        self,
        config: SparseConfig,
        manager: WorkspaceManager,
        providers: Sequence[KernelProvider] | None = None,
        *,
        stable: bool = False,
    ) -> None:
        """Keep what every call needs.

        Args:
            config: The configuration.
            manager: Scratch memory, reserved by ``run`` without metadata.
            providers: Kernel providers to try; the registry's order by default.
            stable: Whether ties of scores go to the smaller position.
        """
        self.config, self.manager, self.providers, self.stable = config, manager, providers, stable
        self.scratch = plan_workspace(config)

    def run(self, inputs: IndexerInputs, metadata: SparseIndexerMetadata | None, topk_indices: Tensor) -> Tensor:
        """Write keys and select positions; without metadata, as in profiling, reserve scratch and do nothing else.

        Args:
            inputs: Queries, keys and cache of this layer.
            metadata: The record of this step; None while the engine profiles.
            topk_indices: [at least num_tokens, topk] int32, contiguous; written for every token of the step.

        Returns:
            ``topk_indices``: request-local positions, -1 behind the candidates and on padding tokens.

        Raises:
            ContractError: The record asks for more keys than were reserved; nothing has been selected then.
            NoProvider: No provider can run the inputs.

        Sync: none of its own.
        """
        if metadata is None:
            self.scratch.reserve(self.manager)
            return topk_indices
        num_tokens = metadata.num_decode_tokens + metadata.num_prefill_tokens
        slots = metadata.slot_mapping[: len(inputs.k)]
        write = WriteIndexerK(k=inputs.k, slot_mapping=slots, cache=inputs.cache, format=self.config.index_format)
        registry.run(write, self.providers)
        if metadata.prefill is not None:
            self._prefill(inputs, metadata, topk_indices[:num_tokens])
        if metadata.decode is not None:
            self._decode(inputs, metadata, metadata.decode, topk_indices[: metadata.num_decode_tokens])
        return topk_indices

    def _prefill(self, inputs: IndexerInputs, metadata: SparseIndexerMetadata, topk_indices: Tensor) -> None:
        """Select for the prefill tokens, chunk after chunk; tokens that are in no chunk see nothing."""
        chunks = metadata.prefill.chunks if metadata.prefill is not None else []
        buffer = self._buffer(metadata)
        at = metadata.num_decode_tokens
        for chunk in chunks:
            topk_indices[at : chunk.token_start].fill_(NOTHING)
            keys = self._keys(chunk, inputs.cache, buffer)
            self._select(chunk, inputs, keys, topk_indices[chunk.token_start : chunk.token_end])
            at = chunk.token_end
        topk_indices[at:].fill_(NOTHING)

    def _buffer(self, metadata: SparseIndexerMetadata) -> GatheredKeys:
        """Return the buffer for the keys of every chunk of this step."""
        arrays = take(self.scratch.prefill, self.manager)
        buffer = GatheredKeys(arrays["keys"], arrays.get("key_scales"))
        chunks = metadata.prefill.chunks if metadata.prefill is not None else []
        if max((chunk.total_seq_lens for chunk in chunks), default=0) > len(buffer.values):
            validate_metadata(metadata, facts=Facts(indexer_rows=len(buffer.values)))
        return buffer

    def _keys(self, chunk: IndexerChunkRecord, cache: Tensor, buffer: GatheredKeys) -> GatheredKeys:
        """Return a chunk's keys: gathered now, or still in the buffer from the chunk before."""
        keys = buffer.leading(chunk.total_seq_lens)
        if not chunk.skip_kv_gather:
            registry.run(self._gather(chunk, cache, keys), self.providers)
        return keys

    def _gather(self, chunk: IndexerChunkRecord, cache: Tensor, keys: GatheredKeys) -> GatherIndexerK:
        """Return the operation that gathers a chunk's keys."""
        return GatherIndexerK(
            cache=cache,
            format=self.config.index_format,
            block_table=chunk.block_table,
            cu_seq_lens=chunk.cu_seq_lens,
            num_keys=chunk.total_seq_lens,
            k_out=keys.values,
            scale_out=keys.scales,
        )

    def _select(self, chunk: IndexerChunkRecord, inputs: IndexerInputs, keys: GatheredKeys, out: Tensor) -> None:
        """Score a chunk's tokens against its keys and keep the best positions."""
        tokens = slice(chunk.token_start, chunk.token_end)
        score = ChunkLogits(
            q=inputs.q[tokens],
            k=keys.values,
            k_scale=None if keys.scales is None else keys.scales.view(-1),
            weights=inputs.weights[tokens],
            starts=chunk.cu_seqlen_ks,
            ends=chunk.cu_seqlen_ke,
        )
        logits = registry.run(score, self.providers)
        self._topk(logits, chunk.cu_seqlen_ks, chunk.cu_seqlen_ke, out)

    def _topk(self, logits: Tensor, starts: Tensor | None, ends: Tensor, out: Tensor) -> None:
        """Keep the best positions of each row."""
        topk = self.config.topk_tokens
        best = TopkRows(logits=logits, starts=starts, ends=ends, topk=topk, out=out, stable=self.stable)
        registry.run(best, self.providers)

    def _decode(
        self, inputs: IndexerInputs, metadata: SparseIndexerMetadata, decode: IndexerDecodeRecord, out: Tensor
    ) -> None:
        """Select for the decode tokens."""
        arrays = take(self.scratch.decode, self.manager)
        if decode.seq_lens.dim() == 1:
            q, weights = inputs.q[: len(out)], inputs.weights[: len(out)]
            self._score(q[:, None], weights, decode.seq_lens, (decode, inputs.cache), arrays["decode_logits"])
            self._topk(arrays["decode_logits"][: len(out)], None, decode.seq_lens, out)
            return
        rows, width = decode.seq_lens.shape
        place = padded_places(metadata, rows, width)
        q = _packed(inputs.q[: len(out)], place, rows * width)
        weights = _packed(inputs.weights[: len(out)], place, rows * width)
        lens = metadata.seq_lens[:rows]
        queries = q.view(rows, width, *q.shape[1:])
        self._score(queries, weights, lens, (decode, inputs.cache), arrays["decode_logits"])
        scratch = arrays["decode_topk"][: rows * width]
        self._topk(arrays["decode_logits"][: rows * width], None, decode.seq_lens.view(-1), scratch)
        live = place < rows * width
        picked = scratch[place.clamp(max=rows * width - 1)]
        out.copy_(torch.where(live[:, None], picked, NOTHING))

    def _score(
        self, q: Tensor, weights: Tensor, lens: Tensor, source: tuple[IndexerDecodeRecord, Tensor], logits: Tensor
    ) -> None:
        """Score decode rows against the cache."""
        decode, cache = source
        score = PagedLogits(
            q=q,
            cache=cache,
            format=self.config.index_format,
            weights=weights,
            context_lens=lens,
            block_table=decode.block_table,
            max_model_len=self.config.max_model_len,
            out=logits[: len(weights)],
        )
        registry.run(score, self.providers)


def padded_places(metadata: SparseIndexerMetadata, rows: int, width: int) -> Tensor:
    """Return where each decode token stands in rows of ``width`` tokens, queries at the end of their row.

    Padding tokens get the place behind the last row. Sync: none.
    """
    token = torch.arange(metadata.num_decode_tokens, device=metadata.query_start_loc.device)
    ends = metadata.query_start_loc[1 : rows + 1]
    owner = torch.searchsorted(ends, token, right=True)
    known = owner.clamp(max=rows - 1)
    place = known * width + width - (ends[known] - token)
    return torch.where(owner < rows, place, rows * width)


def _packed(array: Tensor, place: Tensor, num_rows: int) -> Tensor:
    """Return rows at their places, and zeros elsewhere."""
    packed = array.new_zeros(num_rows + 1, *array.shape[1:])
    packed[place] = array
    return packed[:num_rows]
