"""Steps in which every request decodes one token: most steps of an engine, and nearly all of their plan is known.

Owners, row lengths and offsets follow from the number of requests and of those that padding adds for graph replay; only
sequence lengths and what is summed from them are new. Such a step equals what the shared plan says, and a test compares
the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from mla_contract.adapters.arrays import INT32, Int32Array, counting, ones, padded, prefix_sum, sealed
from mla_contract.adapters.buffers import PlanBuffers
from mla_contract.adapters.decode import NO_REQUEST
from mla_contract.adapters.split import Split
from mla_contract.adapters.tokens import PADDING_REQUEST
from mla_contract.backends.sparse.device_lens import BOUNDS
from mla_contract.backends.sparse.planning import host_array
from mla_contract.backends.sparse.step import LoweredStep

if TYPE_CHECKING:
    from mla_contract.backends.sparse.config import SparseConfig
    from mla_contract.contract.schema.batch import CommonBatch

ROW_FIELDS = ("decode_seq_lens", "decode_lens", "decode_row_requests", "req_id_per_token")
"""Fields with a row for each request."""


class _Known(NamedTuple):
    """What follows from the numbers of requests: offsets as bytes, counts, owners of tokens and rows, lengths, rows."""

    start_loc: bytes
    split: Split
    owners: Int32Array
    row_owners: Int32Array
    lens: Int32Array
    lowered: dict[str, Tensor]


class PlainDecodes:
    """Lowers plain steps into the buffers of the shared plan."""

    def __init__(self, config: SparseConfig, buffers: PlanBuffers) -> None:
        self._config, self._buffers = config, buffers
        self._topk = np.array([config.topk_tokens], dtype=INT32)
        # An entry for each pair of all and live requests that comes. There are few: a batch is padded to the next
        # captured size. The buffers refuse more than they were made for.
        self._known: dict[tuple[int, int], _Known] = {}

    def step(self, batch: CommonBatch, indexer: bool) -> LoweredStep | None:
        """Return the step of a batch, on the device; None where a request does something else.

        Args:
            batch: The batch.
            indexer: Whether the indexer's rows are lowered.

        Raises:
            InvalidBatch: The batch exceeds the buffers.

        Sync: reads no device memory.
        """
        bounds, count = batch.seq_lens_cpu_upper_bound, batch.num_reqs
        if bounds is None or batch.max_query_len != 1 or batch.num_actual_tokens != count or count == 0:
            return None
        if batch.dcp_local_seq_lens is not None:
            return None
        start_loc, seq_lens = host_array(batch.query_start_loc_cpu), host_array(bounds)
        live = int(start_loc[-1])
        if not 0 < live <= count or len(seq_lens) != count:
            return None
        known = self._known.get((count, live)) or self._learn(count, live)
        # Compared as bytes: comparing arrays would make a third one, and then reduce it.
        if start_loc.tobytes() != known.start_loc or np.minimum.reduce(seq_lens[:live]) < 1:
            return None
        if live < count and np.count_nonzero(seq_lens[live:]):
            return None
        offsets = prefix_sum(np.minimum(seq_lens, self._topk))
        arrays = {"req_id_per_token": known.owners, "sparse_start_loc": offsets}
        if indexer:
            arrays.update(decode_seq_lens=seq_lens, decode_lens=known.lens, decode_row_requests=known.row_owners)
        if self._config.device_lens_may_differ:
            arrays[BOUNDS] = seq_lens
        self._buffers.lower_arrays(arrays)
        return LoweredStep(self._config, batch, known.split, known.lowered, count, 1, indexer, known.lens, offsets)

    def _learn(self, count: int, live: int) -> _Known:
        """Return, and keep, what follows from the numbers of all and of live requests."""
        self._buffers.validate_requests(count)
        rows = dict.fromkeys(ROW_FIELDS, count) | {"sparse_start_loc": count + 1}
        lowered = {name: self._buffers.buffer(name)[:length] for name, length in rows.items()}
        found = self._known[count, live] = _Known(
            sealed(padded(counting(live + 1), count + 1, live)).tobytes(),
            Split(count, 0, count, 0),
            sealed(padded(counting(live), count, PADDING_REQUEST)),
            sealed(padded(counting(live), count, NO_REQUEST)),
            sealed(padded(ones(live), count, 0)),
            lowered,
        )
        return found
