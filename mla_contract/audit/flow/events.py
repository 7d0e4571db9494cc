"""What a run reports: reads, constructions and stores of metadata, each with the conditions in its way."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from mla_contract.audit.flow.values import Value
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.index import Function


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition that holds where an event happens.

    Attributes:
        text: The condition as written, negated where the other branch was taken.
        capability: Whether it holds only where a capability is configured.
    """

    text: str
    capability: bool


@dataclass(frozen=True, slots=True)
class Read:
    """One read of an attribute of a metadata object.

    Attributes:
        holder: Type that the attribute is looked up on.
        attr: Its name.
        path: Access path from the metadata object.
        function: Function that reads.
        node: The reading expression.
        guards: Conditions on the way there.
        missing: Whether the class has no such attribute.
        defaulted: Whether the read has a default (``getattr``) or is itself a test (``hasattr``).
        batch: Whether the object is a builder's input batch rather than metadata.
    """

    holder: ClassInfo
    attr: str
    path: str
    function: Function
    node: ast.expr
    guards: tuple[Guard, ...]
    missing: bool
    defaulted: bool = False
    batch: bool = False

    @property
    def condition(self) -> str | None:
        """Return the capabilities without which the read is not reached, or None."""
        texts = dict.fromkeys(guard.text for guard in self.guards if guard.capability)
        return " and ".join(texts) or None


@dataclass(frozen=True, slots=True)
class Construct:
    """A metadata object being built: which arguments were given, with their values."""

    cls: ClassInfo
    values: tuple[tuple[str, Value], ...]
    complete: bool
    function: Function
    node: ast.Call


@dataclass(frozen=True, slots=True)
class Store:
    """An attribute set on a metadata object from outside its class."""

    cls: ClassInfo
    attr: str
    value: Value
    function: Function
    node: ast.expr


@dataclass(slots=True)
class Events:
    """Everything a run reported, in order."""

    reads: list[Read] = field(default_factory=list)
    constructs: list[Construct] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)

    def extend(self, other: Events) -> None:
        """Append the events of another run."""
        self.reads += other.reads
        self.constructs += other.constructs
        self.stores += other.stores
