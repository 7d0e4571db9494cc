"""What the conformance suite is given: a builder under test with all that is constant about it, checked before it runs.

A target that is not one is its author's first mistake, and is said as such: it is never the builder's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from mla_contract.adapters.fault import SettingFault, validate_settings
from mla_contract.adapters.release import NEWEST
from mla_contract.contract.schema.declaration import BackendDeclaration
from mla_contract.contract.step.facts import Facts
from mla_contract.contract.step.trace import BuildTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """What a builder claims beyond its declaration.

    Attributes:
        persistent: Array fields of the record that a captured graph reads: equal batches get equal addresses.
        protocol: The Protocol of the record; None takes the one that it looks like.
        release: The vLLM release whose plan is wanted.
        metadata_class: The class of the record that the impl is written for; None where that is left open.
    """

    persistent: tuple[str, ...] = ()
    protocol: type | None = None
    release: str | None = NEWEST
    metadata_class: type | None = None


class ExpectationsLike(Protocol):
    """What ``Expectations`` must have; packages that do not depend on this one declare their own."""

    @property
    def persistent(self) -> tuple[str, ...]:
        """Array fields that a captured graph reads."""
        ...

    @property
    def protocol(self) -> type | None:
        """The Protocol of the record, or None."""
        ...

    @property
    def release(self) -> str | None:
        """The vLLM release whose plan is wanted."""
        ...


class ConformanceTarget(Protocol):
    """A builder under test, with all that is constant about it."""

    @property
    def declaration(self) -> BackendDeclaration:
        """What the backend says of itself."""
        ...

    @property
    def facts(self) -> Facts:
        """Numbers of the configuration; ``kernel_block_size`` and ``decode_threshold`` choose the batches' form."""
        ...

    @property
    def expectations(self) -> ExpectationsLike:
        """What the builder claims besides."""
        ...

    def build(self, batch: Any) -> Any:
        """Return the metadata of one step: a record, or the records of attention and indexer in a dict or a tuple.

        Args:
            batch: A ``CommonBatch`` on the host.
        """
        ...


@runtime_checkable
class TracingTarget(Protocol):
    """A target that also says what happened around its last build."""

    def trace(self) -> BuildTrace:
        """Return calls, workspace, reuse and planned work of the last build, as far as they are known."""
        ...


Factory = Callable[[], ConformanceTarget]


def target_faults(target: object) -> tuple[SettingFault, ...]:
    """Return every respect in which an object is not a target; attributes that raise are the author's to see.

    Args:
        target: What a factory returned.
    """
    name = type(target).__name__
    wanted: dict[str, tuple[type, str]] = {
        "declaration": (BackendDeclaration, "a BackendDeclaration"),
        "facts": (Facts, "Facts"),
    }
    faults = [
        SettingFault(f"{name}.{member}", expected, _shown(target, member))
        for member, (kind, expected) in wanted.items()
        if not isinstance(getattr(target, member, None), kind)
    ]
    if not callable(getattr(target, "build", None)):
        faults.append(SettingFault(f"{name}.build", "a method that takes a batch", _shown(target, "build")))
    faults += _expectation_faults(target, name)
    return tuple(faults)


def _expectation_faults(target: object, name: str) -> list[SettingFault]:
    """Return what is wrong with the expectations."""
    given: Any = getattr(target, "expectations", None)
    missing = [one for one in ("persistent", "protocol", "release") if not hasattr(given, one)]
    if missing:
        text = "Expectations(persistent=..., protocol=..., release=...), or an object with these attributes"
        return [SettingFault(f"{name}.expectations", text, _shown(target, "expectations"))]
    faults, place = [], f"{name}.expectations"
    names = given.persistent
    if isinstance(names, str) or not isinstance(names, tuple) or not all(isinstance(one, str) for one in names):
        faults.append(SettingFault(f"{place}.persistent", "a tuple of field names", names))
    if given.protocol is not None and not isinstance(given.protocol, type):
        faults.append(SettingFault(f"{place}.protocol", "a Protocol class, or None", given.protocol))
    if given.release is not None and not isinstance(given.release, str):
        faults.append(SettingFault(f"{place}.release", "a release such as '0.33', or None", given.release))
    return faults


def _shown(target: object, member: str) -> object:
    """Return a member as an error shows it."""
    return getattr(target, member, _MISSING)


class _Missing:
    """Stands for a member that is not there."""

    def __repr__(self) -> str:
        return "nothing: there is no such attribute"


_MISSING = _Missing()


def made_by(factory: Factory) -> ConformanceTarget:
    """Return a new target.

    Raises:
        InvalidConfig: It is not a target; says of each member what was expected and found.
    """
    target = factory()
    faults = target_faults(target)
    if faults:
        validate_settings(faults)
    return target
