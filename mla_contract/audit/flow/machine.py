"""The state of one abstract run, and the operations that the parts of the interpreter call on one another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mla_contract.audit.flow.events import Events, Guard
from mla_contract.audit.flow.memo import Memo
from mla_contract.audit.flow.values import Obj, Value
from mla_contract.audit.model.backends import Backend
from mla_contract.audit.model.index import Function, ModuleIndex
from mla_contract.audit.model.module import Import
from mla_contract.audit.model.nodes import walk


@dataclass(slots=True)
class Frame:
    """One call in progress."""

    function: Function
    env: dict[str, Value]
    imports: dict[str, Import] = field(default_factory=dict)
    returns: list[Value] = field(default_factory=list)
    jumps: list[list[dict[str, Value]]] = field(default_factory=list)


class Machine:
    """Base of the interpreter: its state, and the operations that its parts call on one another."""

    max_depth = 9
    """Calls within calls that are followed.

    What is found in vLLM 0.26 and 0.33 is the same from 3 on; forks put wrappers of their own between.
    """

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
