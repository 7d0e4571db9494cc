"""Scratch memory as tests look at it: what was reserved, and whether an array lies there."""

from __future__ import annotations

from torch import Tensor

from mla_contract.backends.sparse.config import SparseConfig
from mla_contract.backends.sparse.workspace import LocalWorkspace, plan_workspace
from mla_contract.contract.step.trace import BuildTrace, Lane, Workspace


class KnownWorkspace(LocalWorkspace):
    """A workspace that knows its own memory."""

    def holds(self, array: Tensor) -> bool:
        """Return whether an array lies in this memory."""
        begin = array.data_ptr() - self._memory.data_ptr()
        return begin >= 0 and begin + array.numel() * array.element_size() <= self._memory.numel()


def workspace_trace(config: SparseConfig, reserved_bytes: int, ubatch: int = 0) -> BuildTrace:
    """Return what the workspace clauses compare: the bytes that somebody reserved, and those that the run asks for.

    Args:
        config: The configuration.
        reserved_bytes: Bytes reserved while profiling.
        ubatch: The micro-batch.
    """
    lane = Lane(ubatch, "sparse")
    needed = plan_workspace(config).total_bytes
    return BuildTrace(
        workspace=Workspace(reserved_bytes={lane: reserved_bytes}, needed_bytes={lane: needed}, slack=1.25)
    )
