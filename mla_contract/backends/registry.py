"""Backends by name: each is one object, which the entry points of ``mla_contract.backends`` name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mla_contract.backends.entry_points import load_registered, registrations

GROUP = "mla_contract.backends"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredBackend:
    """All that is known of a backend by its name, as paths: to name a backend is not to import its kernels.

    Attributes:
        name: The name, that of the entry point too.
        target: ``module:factory`` of a target of the conformance suite; empty where there is none.
        engine_class: ``module:Class`` of the attention backend that vLLM loads; empty where there is none.
    """

    name: str
    target: str = ""
    engine_class: str = ""


def known_backends() -> Mapping[str, RegisteredBackend | str]:
    """Return every registered backend, or why it cannot be had, by name."""
    return {name: find_backend(name) for name in registrations(GROUP)}


def find_backend(name: str) -> RegisteredBackend | str:
    """Return a registered backend, or why it cannot be had."""
    found = load_registered(GROUP, name)
    if isinstance(found, str):
        return found
    if not isinstance(found, RegisteredBackend):
        return f"its entry point leads to {type(found).__name__}, not to a RegisteredBackend"
    return found if found.name == name else f"it is registered as {name}, and calls itself {found.name}"
