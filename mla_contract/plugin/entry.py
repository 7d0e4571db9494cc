"""The entry points that vLLM calls: they do nothing, and import nothing, until the environment asks for something."""

from __future__ import annotations

import os
from importlib import import_module

MODE_VARIABLE = "MLA_CONTRACT_VALIDATE"
BACKEND_VARIABLE = "MLA_CONTRACT_BACKEND"
"""The same names as in the modules that read them, which are not imported while they are unset."""

_ENGINE = "mla_contract.backends.vllm"
"""Named, not imported: what binds backends to vLLM stands on backends, and so above this module."""


def register() -> None:
    """Arm the validator and register the backend, if the environment asks for them.

    ``vllm.general_plugins`` names it. vLLM calls it in every process, and may call it twice.

    Raises:
        InvalidContract: If a variable holds an unknown word: a misspelt word must not pass for a clean run.
    """
    if os.environ.get(MODE_VARIABLE):
        from mla_contract.plugin.arming import arm

        arm()
    if os.environ.get(BACKEND_VARIABLE):
        from mla_contract.backends.choice import chosen_backend, index_cache

        path, cache = chosen_backend(), index_cache()
        import_module(f"{_ENGINE}.registration").register(path, cache)
        from mla_contract.plugin.choice import announce_choice

        announce_choice(os.environ[BACKEND_VARIABLE], str(path))


def platform() -> str | None:
    """Return the platform that lets the CPU engine take sparse MLA; None unless asked, and on every other device.

    ``vllm.platform_plugins`` names it. An unknown word is not reported here, where vLLM would swallow the error, but by
    ``register``.
    """
    if not os.environ.get(BACKEND_VARIABLE):
        return None
    from vllm.platforms import cpu_platform_plugin

    return f"{_ENGINE}.platform.SparseCpuPlatform" if cpu_platform_plugin() is not None else None
