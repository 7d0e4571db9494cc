"""The entry point in ``vllm.general_plugins``: does nothing, and imports nothing, until the environment sets a mode."""

from __future__ import annotations

import os

MODE_VARIABLE = "MLA_CONTRACT_VALIDATE"
"""The same name as in the runtime's settings, which are not imported while it is unset."""


def register() -> None:
    """Arm the validator if the environment asks for it; vLLM calls this in every process, and may call it twice.

    Raises:
        InvalidContract: If a variable holds an unknown word: a misspelt mode must not pass for a clean run.
    """
    if os.environ.get(MODE_VARIABLE):
        from mla_contract.adapters.vllm.arming import arm

        arm()
