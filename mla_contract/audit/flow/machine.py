"""The state of one abstract run, and the events it reports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mla_contract.audit.flow.memo import Memo
from mla_contract.audit.flow.values import Obj, Value
from mla_contract.audit.model.backends import Backend
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.index import Function, ModuleIndex
from mla_contract.audit.model.module import Import
from mla_contract.audit.model.nodes import walk


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
class Frame:
    """One call in progress."""

    function: Function
    env: dict[str, Value]
    imports: dict[str, Import] = field(default_factory=dict)
    returns: list[Value] = field(default_factory=list)
    jumps: list[list[dict[str, Value]]] = field(default_factory=list)


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


class Machine:
    """Base of the interpreter: its state, and the operations that its parts call on one another."""

    max_depth = 9

    def __init__(self, index: ModuleIndex, backend: Backend | None, context: tuple[Value, Value] | None) -> None:
        """Prepare a run.

        Args:
            index: Modules of the tree.
            backend: The backend whose classes are bound, if any.
            context: Metadata and layer that the forward context gives, if any.
        """
        self.index = index
        self.backend = backend
        self.context = context
        self.events = Events()
        self.guards: list[Guard] = []
        self.stack: list[Frame] = []
        self.inline_all = False
        self.tolerant = 0
        self.left_out = 0
        self.dynamic: frozenset[tuple[str, str]] = frozenset()
        self.memo = Memo()
        self.closures: dict[int, tuple[Frame, tuple[str, ...]]] = {}

    @property
    def frame(self) -> Frame:
        """Return the call in progress."""
        return self.stack[-1]

    @contextmanager
    def guarded(self, guard: Guard | None) -> Iterator[None]:
        """Hold a condition for the events inside."""
        if guard is None:
            yield
            return
        self.guards.append(guard)
        try:
            yield
        finally:
            self.guards.pop()

    def restore(self, env: dict[str, Value], node: ast.expr) -> None:
        """Take an environment back after an expression, all but what its assignment expressions bound."""
        bound = {n.target.id for n in walk(node) if isinstance(n, ast.NamedExpr)}
        self.frame.env = {**env, **{name: value for name, value in self.frame.env.items() if name in bound}}

    def evaluate(self, node: ast.expr) -> Value:
        """Return the value of an expression."""
        raise NotImplementedError

    def attribute(self, value: Value, attr: str, node: ast.expr, *, default: Value | None = None) -> Value:
        """Return an attribute of a value and report the read."""
        raise NotImplementedError

    def call(self, node: ast.Call) -> Value:
        """Return the result of a call expression."""
        raise NotImplementedError

    def enter(self, function: Function, bound: Value | None, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Return the result of running a function of the tree."""
        raise NotImplementedError

    def execute(self, body: list[ast.stmt]) -> bool:
        """Run statements; return whether control falls off their end."""
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Value) -> None:
        """Bind a target."""
        raise NotImplementedError

    def narrow(self, test: ast.expr, truth: bool) -> None:
        """Refine names by the outcome of a test."""
        raise NotImplementedError

    def has_attribute(self, obj: Obj, attr: str) -> bool | None:
        """Return whether an object has an attribute, None where the source does not tell."""
        raise NotImplementedError
