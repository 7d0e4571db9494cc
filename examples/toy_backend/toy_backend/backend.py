"""A sparse backend whose every token goes through decode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.buffers import PlanBuffers
from mla_contract.adapters.capacity import Capacity
from mla_contract.adapters.plan import PlanConfig, plan_batch
from mla_contract.contract.schema import claims
from mla_contract.contract.schema.declaration import BackendDeclaration, Routing
from mla_contract.contract.step.facts import Facts
from mla_contract.testing.target import Expectations
from toy_backend import BACKEND

DECLARATION = BackendDeclaration(name=BACKEND.name, routing=Routing.ALL_DECODES, dense_prefill=False, decode_lse=False)
FACTS = Facts(kernel_block_size=16, decode_threshold=1, short_extends_are_decodes=True)
TOPK = 64


@dataclass(kw_only=True)
class ToyMetadata:
    num_reqs: int
    num_actual_tokens: int
    num_decodes: int
    num_prefills: int
    num_decode_tokens: int
    query_start_loc: Tensor
    slot_mapping: Tensor
    max_query_len: int
    max_seq_len: int
    block_table: Tensor
    req_id_per_token: Tensor
    seq_lens: Tensor
    topk_tokens: int = TOPK
    block_size: int = 16
    prefill_max_seq_len: int = 0
    decode_max_query_len: int = 0
    prefill: None = None
    decode: None = None


claims.counts(*claims.of(ToyMetadata))
claims.core(*claims.of(ToyMetadata))
claims.sparse(*claims.of(ToyMetadata))


class ToyBuilder:
    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.config = PlanConfig(block_size=16, topk_tokens=TOPK, flatten_decodes=True)
        capacity = Capacity(max_num_seqs=256, max_num_batched_tokens=8192)
        self.buffers = PlanBuffers(capacity, device, fields=("req_id_per_token",))

    def build(self, batch: Any) -> ToyMetadata:
        offsets, lens = batch.query_start_loc_cpu.numpy(), batch.seq_lens_cpu_upper_bound.numpy()
        shape = BatchShape.from_start_loc(offsets, lens, num_actual_tokens=batch.num_actual_tokens)
        lowered = self.buffers.lower(plan_batch(shape, self.config))
        return ToyMetadata(
            num_reqs=batch.num_reqs,
            num_actual_tokens=batch.num_actual_tokens,
            num_decodes=batch.num_reqs,
            num_prefills=0,
            num_decode_tokens=batch.num_actual_tokens,
            query_start_loc=batch.query_start_loc,
            slot_mapping=batch.slot_mapping,
            max_query_len=batch.max_query_len,
            max_seq_len=batch.max_seq_len,
            block_table=batch.block_table_tensor,
            req_id_per_token=lowered["req_id_per_token"],
            seq_lens=batch.seq_lens,
            decode_max_query_len=batch.max_query_len,
        )


@dataclass(frozen=True)
class ToyTarget:
    build: Callable[[Any], ToyMetadata]
    declaration: BackendDeclaration = DECLARATION
    facts: Facts = FACTS
    expectations: Expectations = Expectations(persistent=("req_id_per_token",))


def target() -> ToyTarget:
    return ToyTarget(ToyBuilder().build)
