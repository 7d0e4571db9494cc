"""A third-party backend: registered as CUSTOM, and taken for dense MLA on the CPU."""


def register() -> None:
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "stale_rows_backend.backend.StaleRowsBackend")
    platform = type(current_platform)
    if getattr(platform, "_stale_rows_backend", False):
        return
    platform._stale_rows_backend = True
    before = platform.get_attn_backend_cls

    def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
        if attn_selector_config.use_mla:
            return AttentionBackendEnum.CUSTOM.get_path()
        return before(selected_backend, attn_selector_config, num_heads)

    platform.get_attn_backend_cls = classmethod(get_attn_backend_cls)
