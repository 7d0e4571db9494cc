"""From the engine's batch to the shared plan: host lengths in, one ``BatchPlan`` out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mla_contract.adapters.arrays import Int32Array
from mla_contract.adapters.batch import BatchOptions, BatchShape
from mla_contract.adapters.plan import BatchPlan, plan_batch
from mla_contract.errors import InvalidContract

if TYPE_CHECKING:
    from torch import Tensor

    from mla_contract.backends.sparse.config import SparseConfig
    from mla_contract.contract.schema.batch import CommonBatch


def plan_of(batch: CommonBatch, config: SparseConfig, *, indexer: bool = True) -> BatchPlan:
    """Return the plan of an engine's batch.

    Uniform decodes keep a row for each request where the configuration wants it and the rows fit; all others are
    flattened, because a kernel with one query length would score a shorter query against the wrong keys.

    Args:
        batch: The batch.
        config: The configuration.
        indexer: Whether the indexer's rows and chunks are planned; the attention does without.

    Raises:
        InvalidContract: The batch has no host lengths, or ranks share its requests.

    Sync: none.
    """
    if batch.dcp_local_seq_lens is not None:
        raise InvalidContract(
            "dcp_local_seq_lens is set: these backends read whole requests; run without decode context parallelism"
        )
    bounds = batch.seq_lens_cpu_upper_bound
    if bounds is None:
        raise InvalidContract(
            "seq_lens_cpu_upper_bound is None: planning needs host lengths, and build() may not read the device"
        )
    shape = _shape_of(batch, host_array(batch.query_start_loc_cpu), host_array(bounds))
    if not indexer:
        return plan_batch(shape, config.attention_plan)
    if not config.native_decode:
        return plan_batch(shape, config.flat_plan)
    plan = plan_batch(shape, config.native_plan)
    return plan if _keeps_rows(plan, config) else plan_batch(shape, config.flat_plan)


def _shape_of(batch: CommonBatch, start_loc: Int32Array, seq_lens: Int32Array) -> BatchShape:
    """Return the lengths of a batch; a request without a sequence is padding, whatever its query."""
    flags = None if batch.is_prefilling is None else host_array(batch.is_prefilling)
    known: BatchOptions = {"num_actual_tokens": batch.num_actual_tokens, "is_prefilling": flags}
    if len(seq_lens) and seq_lens[-1] == 0:
        return BatchShape.of(np.diff(start_loc) * (seq_lens > 0), seq_lens, **known)
    return BatchShape.from_start_loc(start_loc, seq_lens, **known)


def host_array(array: Tensor) -> Any:
    """Return a host tensor's elements."""
    return array.numpy()


def _keeps_rows(plan: BatchPlan, config: SparseConfig) -> bool:
    """Return whether the decodes can have a row for each request."""
    if plan.decode is None or plan.decode.max_decode_len <= 1:
        return False
    lens = plan.decode.per_req_decode_lens
    uniform = bool(((lens == plan.decode.max_decode_len) | (lens == 0)).all())
    return uniform and plan.decode.num_rows * plan.decode.max_decode_len <= config.decode_rows
