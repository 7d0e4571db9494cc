"""The kernel providers of this engine process: those of the registry, unless a test gives others beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mla_contract.backends.kernels import registry
from mla_contract.contract.schema.provider import SizeWork
from mla_contract.errors import NoProvider

if TYPE_CHECKING:
    from mla_contract.contract.schema.persistent_work import WorkConfig
    from mla_contract.contract.schema.provider import KernelProvider

_given: Sequence[KernelProvider] | None = None


def give(providers: Sequence[KernelProvider] | None) -> None:
    """Make every part of this process that is built from now on use these providers; None is the registry's order."""
    global _given
    _given = providers


def given() -> Sequence[KernelProvider] | None:
    """Return the providers to try; None is the registry's order."""
    return _given


def plans_work(config: WorkConfig) -> bool:
    """Return whether a provider plans the attention's work ahead. Sync: none."""
    try:
        registry.select_provider(SizeWork(config=config), _given)
    except NoProvider:
        return False
    return True
