"""Which provider runs an operation: the first of an order that gives no reason against it.

``MLA_CONTRACT_PROVIDER`` holds a name or a comma-separated order, and excludes whatever it does not name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeVar

from mla_contract.backends.kernels.describe import describe_inputs
from mla_contract.contract.schema.provider import KernelProvider, Operation
from mla_contract.contract.structure.arrays import is_array
from mla_contract.errors import NoProvider

R = TypeVar("R")

ENVIRONMENT = "MLA_CONTRACT_PROVIDER"

HOMES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "aiter": ("mla_contract.backends.kernels.aiter", "AiterProvider"),
        "triton": ("mla_contract.backends.kernels.triton", "TritonProvider"),
        "reference": ("mla_contract.backends.kernels.reference", "ReferenceProvider"),
    }
)
"""Module and class of every known provider, in the default order."""

_loaded: dict[str, KernelProvider] = {}


def load_provider(name: str) -> KernelProvider | str:
    """Return a provider, or why it cannot be loaded; it is loaded once."""
    if name in _loaded:
        return _loaded[name]
    if name not in HOMES:
        return f"no provider has this name; known are {', '.join(HOMES)}"
    module, cls = HOMES[name]
    try:
        found: KernelProvider = getattr(import_module(module), cls)()
    except ImportError as error:
        return f"its module cannot be imported: {error}"
    _loaded[name] = found
    return found


def provider_order() -> tuple[str, ...]:
    """Return the names to try, from the environment or by default."""
    named = os.environ.get(ENVIRONMENT, "")
    return tuple(part.strip() for part in named.split(",") if part.strip()) or tuple(HOMES)


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
    away = name == "reference" and name not in os.environ.get(ENVIRONMENT, "") and _device_of(inputs)
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
