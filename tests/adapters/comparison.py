"""Our plan beside vLLM's for one batch: every difference, as text; only listed decisions of ours are exempt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mla_contract.adapters.context_chunks import plan_context_chunks
from mla_contract.adapters.context_fields import FieldContextPlan
from mla_contract.adapters.context_layout import local_rows
from mla_contract.adapters.context_packed import PackedContextPlan
from mla_contract.adapters.context_parallel import local_lens, local_lens_of_ranks
from mla_contract.adapters.fault import InvalidBatch
from mla_contract.adapters.split import split_batch
from tests.adapters.draws import Draw
from tests.adapters.offsets import split_indexer_chunks
from tests.adapters.peers import Peer

DECISIONS = {
    "oversized request": "the chunker passes a request wider than the consumer's buffer on; ours refuses it by row",
    "nothing to score": "up to 0.25 the chunker fails on a run without states and tokens; ours has no chunk for it",
    "round of dealing": "up to 0.27 pieces are aligned to blocks, and an assertion fails where ranks do not divide "
    "them (#41229); ours aligns to lcm(block, size * interleave)",
    "tokens with context": "up to 0.27 prefills with context count as if they stood first; ours takes the last",
}
"""Where ours differs on purpose on batches that are compared, with the reason.

Not compared, since vLLM has no answer: an empty batch, whose first row its split reads; and chunks that it leaves
unaligned to blocks on some platforms, where ours are the same on all.
"""


class Findings(NamedTuple):
    """What one comparison found: differences, and the decisions that exempted something."""

    differences: list[str]
    exempt: set[str]


class _Exempt(str):
    """The name of a decision, in a stream of differences."""

    __slots__ = ()


def as_common(draw: Draw) -> Any:
    """Return the batch as vLLM's split reads it."""
    return CommonBatchDouble(draw)


class CommonBatchDouble:
    """The members that the split reads, as host tensors."""

    def __init__(self, draw: Draw) -> None:
        import torch

        shape = draw.shape
        self.max_query_len = shape.max_query_len
        self.num_reqs = shape.num_reqs
        self.num_actual_tokens = shape.num_actual_tokens
        self.query_start_loc_cpu = torch.tensor(shape.query_start_loc)
        self.is_prefilling = None if shape.is_prefilling is None else torch.tensor(shape.is_prefilling)


def compare(draw: Draw, peer: Peer) -> Findings:
    """Return each difference between our plan and the peer's."""
    parts = [_split_differences, _local_differences, _indexer_differences]
    if peer.context is not None:
        parts.append(_packed_differences if peer.cuts is not None else _field_differences)
    elif peer.cuts is not None:
        parts.append(_cut_differences)
    lines = [line for part in parts for line in part(draw, peer)]
    exempt = {str(line) for line in lines if isinstance(line, _Exempt)}
    assert exempt <= set(DECISIONS), exempt
    return Findings([line for line in lines if not isinstance(line, _Exempt)], exempt)


def _split_differences(draw: Draw, peer: Peer) -> Iterator[str]:
    ours = split_batch(draw.shape, draw.split)
    rule = draw.split
    theirs = peer.split(as_common(draw), rule.threshold, rule.require_uniform, rule.treat_short_extends_as_decodes)
    got = (ours.num_decodes, ours.num_prefills, ours.num_decode_tokens, ours.num_prefill_tokens)
    if got != tuple(theirs):
        yield f"split {theirs} ours {got}"


def _local_differences(draw: Draw, peer: Peer) -> Iterator[str]:
    import torch

    sharing, lens = draw.context.parallel, draw.shape.seq_lens
    tensor = torch.tensor(lens)
    one = peer.local(tensor, sharing.size, sharing.rank, sharing.interleave).numpy()
    every = peer.local(tensor, sharing.size, None, sharing.interleave).numpy()
    yield from _unequal("local lens", one, local_lens(lens, sharing))
    yield from _unequal("local lens of ranks", every, local_lens_of_ranks(lens, sharing))


def _indexer_differences(draw: Draw, peer: Peer) -> Iterator[str]:
    import torch

    rule, lens = draw.indexer, draw.shape.query_lens
    states = draw.shape.seq_lens
    try:
        theirs = peer.indexer(torch.tensor(states), torch.tensor(lens), rule.buffer_states, rule.logits_bytes, 3)
    except ValueError:
        if int(peer.release.split(".")[1]) > 25 or not ((states == 0) & (lens == 0)).any():
            raise
        yield _Exempt("nothing to score")
        return
    wanted = [(reqs.start - 3, reqs.stop - 3, part.start, part.stop) for reqs, part in theirs]
    try:
        ours = [tuple(chunk) for chunk in split_indexer_chunks(states, lens, rule)]
    except InvalidBatch as fault:
        oversized = fault.row is not None and states[fault.row] > rule.buffer_states
        yield _Exempt("oversized request") if oversized else f"indexer {fault}"
        return
    if ours != wanted:
        yield f"indexer {wanted} ours {ours}"


def _plan(draw: Draw) -> PackedContextPlan | FieldContextPlan | None:
    return plan_context_chunks(draw.shape.context_lens, draw.shape.query_start_loc, draw.context)


def _build(draw: Draw, peer: Peer, **more: Any) -> Any:
    """Return the peer's whole record."""
    import torch

    rule = draw.context
    assert peer.context is not None
    return peer.context(
        context_lens_cpu=torch.tensor(draw.shape.context_lens),
        prefill_query_start_loc_cpu=torch.tensor(draw.shape.query_start_loc),
        chunked_prefill_workspace=torch.empty(0),
        chunked_prefill_workspace_size=rule.workspace_rows,
        block_size=rule.block_size,
        align_chunk_to_block=True,
        device=torch.device("cpu"),
        dcp_world_size=rule.parallel.size,
        dcp_local_block_size=rule.parallel.interleave,
        dcp_virtual_block_size=rule.parallel.span,
        **more,
    )


SCALARS = (
    *("request_slice", "token_slice", "continuation_token_end", "is_continuation", "num_context_tokens"),
    *("max_query_len", "max_seq_len", "all_rows_active", "num_local_context_tokens"),
)
ARRAYS = ("query_start_loc", "cu_seq_lens", "seq_lens")
SHARED = ("padded_local_seq_lens", "padded_local_cu_seq_lens", "local_context_lens_allranks", "local_starts")


def _packed_differences(draw: Draw, peer: Peer) -> Iterator[str]:
    theirs, ours = _build(draw, peer), _plan(draw)
    if theirs is None or ours is None:
        if theirs is not ours:
            yield f"context {theirs} ours {ours}"
        return
    assert isinstance(ours, PackedContextPlan)
    yield from _unequal("context_lens", theirs.context_lens, ours.context_lens)
    if list(ours.empty_token_slices) != theirs.empty_token_slices:
        yield f"empty_token_slices {theirs.empty_token_slices} ours {ours.empty_token_slices}"
    if len(theirs.chunks) != len(ours.chunks):
        yield f"{len(theirs.chunks)} context chunks, ours {len(ours.chunks)}"
        return
    for theirs_chunk, chunk in zip(theirs.chunks, ours.chunks, strict=True):
        yield from _chunk_differences(theirs_chunk, chunk, shared=draw.context.parallel.size > 1)


def _chunk_differences(theirs: Any, ours: Any, *, shared: bool) -> Iterator[str]:
    for name in SCALARS:
        if getattr(theirs, name) != getattr(ours, name):
            yield f"chunk {theirs.index} {name} {getattr(theirs, name)} ours {getattr(ours, name)}"
    for name in (*ARRAYS, *(SHARED if shared else ())):
        yield from _unequal(f"chunk {theirs.index} {name}", getattr(theirs, name), getattr(ours, name))
    yield from _unequal("starts", theirs.starts, ours.local_starts if shared else ours.starts)
    yield from _unequal("token_to_seq", theirs.token_to_seq, ours.token_to_seq())
    if shared:
        yield from _unequal("local", theirs.padded_local_token_to_seq, ours.padded_local_token_to_seq())


def _cut_differences(draw: Draw, peer: Peer) -> Iterator[str]:
    rule = draw.context
    assert peer.cuts is not None
    rows = rule.workspace_rows // rule.alignment * rule.alignment
    theirs = peer.cuts(
        draw.shape.context_lens.tolist(),
        rule.workspace_rows // rule.parallel.size,
        rows,
        rule.alignment,
        lambda tokens: int(local_rows(np.array(tokens), rule.parallel)),
    )
    ours = _plan(draw)
    chunks = () if ours is None else ours.chunks if isinstance(ours, PackedContextPlan) else None
    assert chunks is not None
    got = [
        (chunk.request_slice, chunk.starts.tolist(), chunk.seq_lens.tolist(), chunk.is_continuation) for chunk in chunks
    ]
    wanted = [(slice(p.request_start, p.request_end), p.starts, p.seq_lens, p.is_continuation) for p in theirs]
    if got != wanted:
        yield f"cuts {wanted} ours {got}"


FIELDS = ("cu_seq_lens", "seq_lens", "seq_tot", "max_seq_lens", "has_empty_context")
SHARED_FIELDS = ("padded_local_chunk_seq_lens", "padded_local_cu_seq_lens", "local_context_lens_allranks", "chunk_size")


def _field_differences(draw: Draw, peer: Peer) -> Iterator[str]:
    rule, lens = draw.context, draw.shape.context_lens
    if rule.parallel.size > 1 and rule.block_size % rule.parallel.span:
        yield _Exempt("round of dealing")
        return
    theirs, ours = _build(draw, peer, num_prefills=draw.shape.num_reqs), _plan(draw)
    if theirs is None or ours is None:
        if theirs is not ours:
            yield f"context {theirs} ours {ours}"
        return
    assert isinstance(ours, FieldContextPlan)
    for name in FIELDS:
        yield from _unequal(name, getattr(theirs, name), getattr(ours, name))
    yield from _unequal("starts", theirs.starts, ours.gather_starts)
    yield from _unequal("chunk_total_token", theirs.chunk_total_token, ours.chunk_total_token)
    for chunk, owners in enumerate(theirs.token_to_seq):
        yield from _unequal("token_to_seq", owners[: ours.chunk_total_token[chunk]], ours.token_to_seq(chunk))
    if theirs.prefill_tokens_with_context != ours.prefill_tokens_with_context:
        leading = not (np.diff((lens > 0).astype(np.int8)) > 0).any()
        yield "tokens with context" if leading else _Exempt("tokens with context")
    if rule.parallel.size > 1:
        for name in SHARED_FIELDS:
            yield from _unequal(name, getattr(theirs, name), getattr(ours, name))


def _unequal(name: str, theirs: Any, ours: Any) -> Iterator[str]:
    """Yield a line if two arrays differ in shape or in a value."""
    wanted: NDArray[Any] = np.asarray(theirs)
    got: NDArray[Any] = np.asarray(ours)
    if wanted.shape != got.shape or not (wanted == got).all():
        yield f"{name} {wanted.tolist()} ours {got.tolist()}"
