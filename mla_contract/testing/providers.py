"""Kernel providers under test, by the name that users give: a registered one, or what ``module:factory`` returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mla_contract.adapters.fault import SettingFault, validate_settings
from mla_contract.backends.entry_points import load_value
from mla_contract.backends.kernels.registry import load_provider
from mla_contract.contract.schema.provider import KernelProvider
from mla_contract.errors import InvalidContract
from mla_contract.testing.provider_cases import ProviderCase, provider_cases
from mla_contract.testing.provider_suite import CaseVerdict, certify, strides_of
from mla_contract.testing.provider_work import certify_work


def provider_named(name: str) -> KernelProvider:
    """Return a registered provider, or the one that the factory ``module:factory`` returns; what that raises passes.

    Raises:
        InvalidContract: There is none of this name, or what is there is not a provider.
    """
    if ":" not in name:
        found = load_provider(name)
        if isinstance(found, str):
            raise InvalidContract(f"{name}: {found}; other providers are named as module:factory")
        return found
    factory = load_value(name)
    if isinstance(factory, str):
        raise InvalidContract(f"{name}: {factory}")
    if not callable(factory):
        raise InvalidContract(f"{name} is not callable")
    provider: KernelProvider = factory()
    kind = type(provider).__name__
    faults = [
        SettingFault(f"{kind}.{member}", "a method that takes an operation", getattr(provider, member, None))
        for member in ("reason", "run")
        if not callable(getattr(provider, member, None))
    ]
    if not isinstance(getattr(provider, "name", None), str):
        faults.append(SettingFault(f"{kind}.name", "a text", getattr(provider, "name", None)))
    validate_settings(faults)
    return provider


Judge = Callable[[KernelProvider, str], tuple[CaseVerdict, ...]]
"""What is said of a provider on a device."""


def judges() -> Iterator[tuple[str, Judge]]:
    """Yield every case with its name, as what judges a provider by it; cases of work have several verdicts."""
    for case in provider_cases():
        operation = type(case.make()).__name__
        for strided in strides_of(case):
            text = f"{operation}: {case.name}{', strided' if strided else ''}"
            yield text, _judge(case, strided)
        if operation == "SparseAttention" and "-1" not in case.name and "sinks" not in case.name:
            yield f"work: {case.name}", _judge_work(case)


def _judge(case: ProviderCase, strided: bool) -> Judge:
    return lambda provider, device: (certify(provider, case, device, strided=strided),)


def _judge_work(case: ProviderCase) -> Judge:
    return lambda provider, device: tuple(certify_work(provider, case, device))
