"""Which provider runs an operation: the first of an order that gives no reason against it.

Providers are registered by the entry points of ``mla_contract.providers``, ours and anybody's alike.
``MLA_CONTRACT_PROVIDER`` holds a name or a comma-separated order, and excludes whatever it does not name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

from mla_contract.backends.entry_points import load_registered, registrations
from mla_contract.backends.kernels.describe import describe_inputs
from mla_contract.contract.schema.provider import KernelProvider, Operation
from mla_contract.contract.structure.arrays import is_array
from mla_contract.errors import NoProvider

R = TypeVar("R")

ENVIRONMENT = "MLA_CONTRACT_PROVIDER"
GROUP = "mla_contract.providers"

REFERENCE = "reference"
OTHERS = "*"
DEFAULT_ORDER = ("aiter", "triton", OTHERS, REFERENCE)
"""The order in which providers are tried; ``OTHERS`` are those of other packages, by name.

They fill what measured kernels lack, and come before the reference, which is slow and can run nearly everything.
"""

# A selection happens for every operation of every layer: a provider is made once, and so is the reason against it.
_loaded: dict[str, KernelProvider | str] = {}


def known_providers() -> tuple[str, ...]:
    """Return the names of all registered providers in the default order."""
    known = registrations(GROUP)
    others = sorted(set(known).difference(DEFAULT_ORDER))
    return tuple(name for place in DEFAULT_ORDER for name in (others if place == OTHERS else [place]) if name in known)


def load_provider(name: str) -> KernelProvider | str:
    """Return a provider, or why it cannot be loaded; it is loaded once."""
    if name not in _loaded:
        _loaded[name] = _load(name)
    return _loaded[name]


def _load(name: str) -> KernelProvider | str:
    """Return a new provider, or why there is none."""
    if name not in registrations(GROUP):
        return f"no provider has this name; known are {', '.join(known_providers()) or 'none'}"
    factory = load_registered(GROUP, name)
    if isinstance(factory, str):
        return factory
    try:
        made = factory()
    except Exception as error:  # noqa: BLE001 - the factory is foreign: whatever it raises is why there is no provider
        return f"its factory raises {type(error).__name__}: {error}"
    if not callable(getattr(made, "reason", None)) or not callable(getattr(made, "run", None)):
        return f"its factory returns {type(made).__name__}, which lacks reason or run"
    provider: KernelProvider = made
    if getattr(provider, "name", None) != name:
        return f"it is registered as {name}, and calls itself {getattr(provider, 'name', None)}"
    return provider


def provider_order() -> tuple[str, ...]:
    """Return the names to try, from the environment or by default."""
    return _named_order() or known_providers()


def _named_order() -> tuple[str, ...]:
    """Return the names that the environment holds."""
    return tuple(part.strip() for part in os.environ.get(ENVIRONMENT, "").split(",") if part.strip())


def reasons(inputs: Operation[Any]) -> dict[str, str | None]:
    """Return what each provider of the order says of ``inputs``: a reason, or None when it can run them."""
    return {name: _reason(name, load_provider(name), inputs) for name in provider_order()}


def select_provider(inputs: Operation[Any], providers: Sequence[KernelProvider] | None = None) -> KernelProvider:
    """Return the first provider that can run ``inputs``.

    Args:
        inputs: The operation.
        providers: Providers to try; the registry's order by default.

    Raises:
        NoProvider: If none can; carries the inputs and each provider's reason.
    """
    tried: dict[str, str] = {}
    for name in provider_order() if providers is None else ():
        provider = load_provider(name)
        reason = _reason(name, provider, inputs)
        if reason is None and not isinstance(provider, str):
            return provider
        tried[name] = reason or str(provider)
    for given in providers or ():
        reason = given.reason(inputs)
        if reason is None:
            return given
        tried[given.name] = reason
    raise NoProvider(describe_inputs(inputs), tried)


def run(inputs: Operation[R], providers: Sequence[KernelProvider] | None = None) -> R:
    """Run an operation on the first provider that can.

    Raises:
        NoProvider: If none can.
    """
    return select_provider(inputs, providers).run(inputs)


def _reason(name: str, provider: KernelProvider | str, inputs: Operation[Any]) -> str | None:
    """Return why a provider of the order is not taken."""
    if isinstance(provider, str):
        return provider
    away = name == REFERENCE and name not in _named_order() and _device_of(inputs)
    if away:
        return f"off the CPU ({away}) it is taken only when {ENVIRONMENT} names it"
    return provider.reason(inputs)


def _device_of(inputs: Operation[Any]) -> str | None:
    """Return the device type of the first array that is not on the CPU."""
    for one in getattr(inputs, "__dataclass_fields__", ()):
        value: Any = getattr(inputs, one)
        if is_array(value) and value.device.type != "cpu":
            return str(value.device.type)
    return None
