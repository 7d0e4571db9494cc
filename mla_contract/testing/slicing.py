"""Cuts a batch in two, as an engine does for micro-batches: by tokens, so that a prompt may lie in both halves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mla_contract.contract.step.host import host
from mla_contract.contract.step.trace import Child, Slices
from mla_contract.testing.context_records import tensor

_BY_REQUEST = ("block_table_tensor", "is_prefilling", "dcp_local_seq_lens", "rswa_prefix_lens")
_BY_TOKEN = ("slot_mapping", "positions")


def halves(batch: Any, decode_threshold: int) -> Slices | None:
    """Return two slices of a batch; None where it cannot be cut: a decode is never divided.

    Args:
        batch: The batch; a dataclass with the fields of ``CommonBatch``.
        decode_threshold: Longest query that is still a decode, in tokens.

    Source: vLLM 0.32.0 v1/worker/ubatch_utils.py, by its behaviour
    """
    offsets = batch.query_start_loc_cpu.numpy()
    cut = int(offsets[-1]) // 2
    owner = int(np.searchsorted(offsets, cut, side="right")) - 1
    if cut > 0 and offsets[owner + 1] - offsets[owner] <= decode_threshold:
        cut = int(offsets[owner])
    if not 0 < cut < offsets[-1]:
        return None
    # A runner's padding requests go with the second half, where the last tokens are.
    last = int(np.searchsorted(offsets, cut, side="left"))
    first = int(np.searchsorted(offsets, cut, side="right")) - 1
    parts = ((slice(0, last), slice(0, cut)), (slice(first, batch.num_reqs), slice(cut, batch.num_actual_tokens)))
    return Slices(batch, tuple(Child(_cut(batch, *part), *part) for part in parts))


def _cut(batch: Any, requests: slice, tokens: slice) -> Any:
    """Return the requests and tokens of a half as a batch."""
    whole = batch.query_start_loc_cpu.numpy()[requests.start : requests.stop + 1]
    offsets = np.clip(whole, tokens.start, tokens.stop)
    # Tokens that the half leaves to the next one are not in its sequence yet.
    behind = np.zeros(len(whole) - 1, np.int32)
    behind[-1] = max(int(whole[-1]) - tokens.stop, 0)
    upper = batch.seq_lens_cpu_upper_bound.numpy()[requests] - behind
    device = batch.seq_lens.device
    start_loc = tensor(offsets - tokens.start)
    fields = {name: getattr(batch, name)[requests] for name in _BY_REQUEST if getattr(batch, name, None) is not None}
    fields |= {name: getattr(batch, name)[tokens] for name in _BY_TOKEN if getattr(batch, name, None) is not None}
    return replace(
        batch,
        query_start_loc=start_loc.to(device, copy=True),
        query_start_loc_cpu=start_loc,
        seq_lens=tensor(host(batch.seq_lens)[requests] - behind).to(device),
        seq_lens_cpu_upper_bound=tensor(upper),
        num_reqs=len(upper),
        num_actual_tokens=tokens.stop - tokens.start,
        max_query_len=int(np.diff(offsets).max(initial=0)),
        max_seq_len=int(upper.max(initial=0)),
        **fields,
    )
