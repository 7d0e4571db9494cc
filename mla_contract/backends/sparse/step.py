"""One planned batch: what the attention's record and the indexer's record are both made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mla_contract.adapters.arrays import Int32Array
from mla_contract.adapters.buffers import DevicePlan
from mla_contract.adapters.plan import BatchPlan
from mla_contract.adapters.split import Split
from mla_contract.backends.sparse.planning import plan_of
from mla_contract.backends.sparse.prefill import SparsePrefill

if TYPE_CHECKING:
    from mla_contract.backends.sparse.config import SparseConfig
    from mla_contract.contract.schema.batch import CommonBatch


@dataclass(slots=True, eq=False)
class LoweredStep:
    """A batch, its division, and the arrays of its plan on the device.

    Attributes:
        config: The configuration.
        batch: The engine's batch.
        split: Its decodes and prefills.
        lowered: For each field of the plan, its live rows on the device.
        num_kernel_rows: Rows of q that the attention of this step gets.
        decode_max_query_len: Longest decode query, in tokens, or a bound above it; 0 without decodes.
        has_indexer: Whether the indexer's parts were planned and lowered.
        query_lens: [num_reqs] int32 on the host, new tokens of each request.
        sparse_start_loc: [num_actual_tokens+1] int32 on the host, prefix sum of the keys that each token reads.
        prefill: The prefill record; None without dense prefill.
        prefill_max_seq_len: Longest prefill, in tokens.
        known_plan: The plan on the host; None where every request decodes one token, and it follows from that.
    """

    config: SparseConfig
    batch: CommonBatch
    split: Split
    lowered: DevicePlan | dict[str, Tensor]
    num_kernel_rows: int
    decode_max_query_len: int
    has_indexer: bool
    query_lens: Int32Array
    sparse_start_loc: Int32Array | None
    prefill: SparsePrefill | None = None
    prefill_max_seq_len: int = 0
    known_plan: BatchPlan | None = None

    @property
    def plan(self) -> BatchPlan:
        """The plan on the host. Sync: none."""
        if self.known_plan is None:
            self.known_plan = plan_of(self.batch, self.config)
        return self.known_plan

    def shared_fields(self) -> dict[str, Any]:
        """Return the fields that do not depend on the kernels: counts, core and sparse. Sync: none."""
        batch, split, config, rows = self.batch, self.split, self.config, self.num_kernel_rows
        owners = self.lowered["req_id_per_token"]
        return {
            "num_reqs": batch.num_reqs,
            "num_actual_tokens": batch.num_actual_tokens,
            "num_decodes": split.num_decodes,
            "num_prefills": split.num_prefills,
            "num_decode_tokens": split.num_decode_tokens,
            "query_start_loc": batch.query_start_loc,
            "slot_mapping": batch.slot_mapping,
            "max_query_len": batch.max_query_len,
            "max_seq_len": batch.max_seq_len,
            "prefill": self.prefill,
            "block_table": batch.block_table_tensor,
            "req_id_per_token": owners if rows == batch.num_actual_tokens else owners[:rows],
            "topk_tokens": config.topk_tokens,
            "block_size": config.block_size,
            "prefill_max_seq_len": self.prefill_max_seq_len,
            "seq_lens": batch.seq_lens,
            "decode_max_query_len": self.decode_max_query_len,
        }
