"""One line about the backend that the environment chose: it is in use, or the model's layers have another one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Any

from mla_contract.plugin.arming import adopt_engine_log
from mla_contract.plugin.hooks import group_class

logger = logging.getLogger("mla_contract")

_MARK = "__mla_contract_choice__"


class ChoiceLines:
    """Says each thing once in a process.

    Args:
        word: What the environment names.
        path: Dotted path of the class that is registered for it.
    """

    def __init__(self, word: str, path: str) -> None:
        self.word, self.path = word, path
        self._said: set[str] = set()
        self._lock = Lock()

    def look(self, backend: Any, config: Any) -> None:
        """Look at the backend of a group of layers whose builders were made."""
        path = f"{backend.__module__}.{backend.__qualname__}"
        if path == self.path:
            self._say(f"attention backend in use: {self.word}, {path}")
        elif backend.is_mla():
            self._say(f"MLA_CONTRACT_BACKEND={self.word} was not used: the engine gave MLA layers {path}")
        elif getattr(getattr(config, "model_config", None), "use_mla", None) is False:
            self._say(f"MLA_CONTRACT_BACKEND={self.word} was not used: the model has no MLA layers")

    def _say(self, text: str) -> None:
        """Log a text, unless it was logged."""
        with self._lock:
            is_new = text not in self._said
            self._said.add(text)
        if is_new:
            logger.info("mla-contract: %s", text)


def announce_choice(word: str, path: str, group: Any = None) -> None:
    """Have the process that makes builders say which backend it has; a second call changes nothing.

    Args:
        word: What the environment names.
        path: Dotted path of the class that is registered for it.
        group: vLLM's class of groups of layers; found by default.
    """
    group = group_class() if group is None else group
    create = getattr(group, "create_metadata_builders", None)
    if create is None or hasattr(create, _MARK):
        return
    adopt_engine_log()
    wrapped = _announcing(ChoiceLines(word, path), create)
    setattr(wrapped, _MARK, True)
    group.create_metadata_builders = wrapped


def _announcing(lines: ChoiceLines, create: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``create_metadata_builders`` that says which backend its builders belong to."""

    @wraps(create)
    def creating(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        made = create(self, vllm_config, *args, **kwargs)
        try:
            lines.look(self.backend, vllm_config)
        except Exception:  # a line in a log must not stop an engine
            logger.debug("mla-contract: the backend in use could not be named", exc_info=True)
        return made

    return creating
