"""A backend for the CPU that is right, until its builder corrupts one field at the step that the environment names."""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Register the backend as CUSTOM, and let the CPU platform take it for MLA."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "planted_fault.backend.PlantedBackend")

    def get_attn_backend_cls(cls: Any, *args: Any, **kwargs: Any) -> str:
        path: str = AttentionBackendEnum.CUSTOM.get_path()
        return path

    type(current_platform).get_attn_backend_cls = classmethod(get_attn_backend_cls)
