"""Scratch memory as one function of the configuration: profiling reserves what the run asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mla_contract.contract.schema.provider import padded_columns
from mla_contract.contract.schema.workspace import ALIGNMENT_BYTES, WorkspaceManager, WorkspacePlan, WorkspaceRequest
from mla_contract.errors import InvalidContract

if TYPE_CHECKING:
    from mla_contract.backends.sparse.config import SparseConfig


@dataclass(frozen=True, slots=True)
class SparseWorkspace:
    """The three users of scratch, one after the other; each asks for all its arrays at once.

    Attributes:
        prefill: Keys that the indexer gathers for a chunk.
        decode: Logits and top-k rows of the indexer's decode part.
        attention: Slots of the selected positions.
    """

    prefill: WorkspacePlan
    decode: WorkspacePlan
    attention: WorkspacePlan

    @property
    def total_bytes(self) -> int:
        """Bytes that serve each user in turn."""
        return max(plan.total_bytes for plan in (self.prefill, self.decode, self.attention))

    def reserve(self, manager: WorkspaceManager) -> None:
        """Ask for every plan once, as the run will; called while the engine profiles."""
        for plan in (self.prefill, self.decode, self.attention):
            take(plan, manager)


def plan_workspace(config: SparseConfig) -> SparseWorkspace:
    """Return the scratch of a configuration; nothing else enters. Sync: none."""
    keys, format = gathered_rows(config), config.index_format
    prefill = [WorkspaceRequest("keys", (keys, format.head_dim), _key_dtype(config))]
    if format.fp8_dtype is not None:
        prefill.append(WorkspaceRequest("key_scales", (keys, format.groups), "float32"))
    rows = config.decode_rows
    decode = [WorkspaceRequest("decode_logits", (rows, padded_columns(config.max_model_len)), "float32")]
    if config.native_decode:
        decode.append(WorkspaceRequest("decode_topk", (rows, config.topk_tokens), "int32"))
    attention = [WorkspaceRequest("topk_slots", (attention_rows(config), config.topk_tokens), "int32")]
    return SparseWorkspace(WorkspacePlan(tuple(prefill)), WorkspacePlan(tuple(decode)), WorkspacePlan(tuple(attention)))


def gathered_rows(config: SparseConfig) -> int:
    """Return the keys of the largest prefill chunk that a batch can lead to.

    A chunk is one request of any length, or several that together fit the planner's rows and the logits budget. A
    prefill with context has at least ``next_n + 1`` query tokens: a shorter one is a decode.
    """
    rows, shortest = config.gather_rows, config.next_n + 1
    best = min(config.max_model_len, rows)
    most = min(config.max_num_seqs, config.max_num_batched_tokens // shortest)
    for count in range(2, most + 1):
        fits = config.logits_bytes // 4 // (count * shortest)
        best = max(best, min(count * config.max_model_len, rows, fits))
    return best


def attention_rows(config: SparseConfig) -> int:
    """Return the rows of q of the largest batch: decodes alone where every prefill attends densely."""
    all_dense = config.dense_prefill and config.max_model_len <= config.topk_tokens
    return config.decode_rows if all_dense else config.token_rows


def _key_dtype(config: SparseConfig) -> str:
    """Return the element type of gathered keys."""
    dtype = config.index_format.fp8_dtype or config.q_dtype
    return str(dtype).rpartition(".")[2]


def take(plan: WorkspacePlan, manager: WorkspaceManager) -> dict[str, Tensor]:
    """Return the plan's arrays by name; they are alive until anybody asks again.

    Sync: none.
    """
    arrays = manager.get_simultaneous(*((one.shape, getattr(torch, one.dtype)) for one in plan.requests))
    return {one.name: array for one, array in zip(plan.requests, arrays, strict=True)}


class LocalWorkspace:
    """A workspace manager for use without an engine: one allocation that grows until it is locked."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)
        self._locked = False

    @property
    def num_bytes(self) -> int:
        """Bytes allocated so far."""
        return self._memory.numel()

    def lock(self) -> None:
        """Refuse to grow from now on."""
        self._locked = True

    def is_locked(self) -> bool:
        """Return whether the workspace may no longer grow."""
        return self._locked

    def get_simultaneous(self, *shapes_and_dtypes: tuple[tuple[int, ...], torch.dtype]) -> list[Tensor]:
        """Return one uninitialised view for each shape, all alive together until the next call.

        Raises:
            InvalidContract: More is asked for than was reserved before the lock.
        """
        requests = tuple(
            WorkspaceRequest(str(index), shape, str(dtype).rpartition(".")[2])
            for index, (shape, dtype) in enumerate(shapes_and_dtypes)
        )
        total = WorkspacePlan(requests).total_bytes
        if total > self._memory.numel():
            if self._locked:
                raise InvalidContract(f"workspace: {total} bytes wanted, {self.num_bytes} reserved before the lock")
            self._memory = torch.empty(total, dtype=torch.uint8, device=self._memory.device)
        views, begin = [], 0
        for request, (shape, dtype) in zip(requests, shapes_and_dtypes, strict=True):
            views.append(self._memory[begin : begin + request.num_bytes].view(dtype).view(shape))
            begin += -(-request.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return views
