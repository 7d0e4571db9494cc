"""Scratch memory of this engine process: vLLM's workspace where it has one, else one of our own."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from mla_contract.backends.sparse.workspace import LocalWorkspace

if TYPE_CHECKING:
    import torch

    from mla_contract.contract.schema.workspace import WorkspaceManager


def workspace(device: torch.device | str) -> WorkspaceManager:
    """Return the manager that attention and indexer share: they take turns."""
    from vllm.v1.worker.workspace import current_workspace_manager, is_workspace_manager_initialized

    if is_workspace_manager_initialized():
        found: WorkspaceManager = current_workspace_manager()
        return found
    return _own(str(device))


@cache
def _own(device: str) -> LocalWorkspace:
    """Return the one of a process whose worker has none, such as the CPU's."""
    return LocalWorkspace(device)
