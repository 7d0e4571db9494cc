"""What a class has: its bases across modules, its fields with types and defaults, its methods."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mla_contract.audit.model.module import FunctionNode, Module, dotted_name, flat_statements

if TYPE_CHECKING:
    from mla_contract.audit.model.index import ModuleIndex

FOREIGN_ROOTS = frozenset({"object", "ABC", "Generic", "Protocol", "Enum", "IntEnum", "StrEnum", "NamedTuple"})


@dataclass(frozen=True, slots=True)
class Field:
    """A data attribute of a class.

    Attributes:
        name: Name.
        owner: Class that declares it.
        annotation: Its annotation, if any.
        default: Its default expression, if any.
        node: The declaring statement.
        kind: ``declared`` in the class body, ``property``, or ``assigned`` on self in a method.
    """

    name: str
    owner: ClassInfo
    annotation: ast.expr | None
    default: ast.expr | None
    node: ast.AST
    kind: str


class ClassInfo:
    """A class definition and what it inherits."""

    def __init__(self, index: ModuleIndex, module: Module, node: ast.ClassDef, outer: ClassInfo | None) -> None:
        """Describe a class definition of a module."""
        self.index = index
        self.module = module
        self.node = node
        self.outer = outer

    def __repr__(self) -> str:
        """Return the qualified name."""
        return self.qualname

    @property
    def name(self) -> str:
        """Return the name, with the names of the classes around it."""
        return f"{self.outer.name}.{self.node.name}" if self.outer else self.node.name

    @property
    def qualname(self) -> str:
        """Return the module and the name."""
        return f"{self.module.name}.{self.name}"

    @cached_property
    def methods(self) -> dict[str, FunctionNode]:
        """Return own methods; the last definition of a name wins, setters are left out."""
        found: dict[str, FunctionNode] = {}
        for node in flat_statements(self.node.body):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                decorators = {dotted_name(d) for d in node.decorator_list}
                if not any(
                    d.endswith((".setter", ".deleter")) or d.rpartition(".")[2] == "overload" for d in decorators
                ):
                    found[node.name] = node
        return found

    @cached_property
    def nested(self) -> dict[str, ClassInfo]:
        """Return classes defined inside this one."""
        return {
            node.name: self.index.class_info(self.module, node, self)
            for node in flat_statements(self.node.body)
            if isinstance(node, ast.ClassDef)
        }

    @cached_property
    def base_exprs(self) -> list[tuple[ClassInfo | None, ast.expr]]:
        """Return the bases in order, each resolved where the tree defines it, with its expression."""
        found: list[tuple[ClassInfo | None, ast.expr]] = []
        for expr in self.node.bases:
            target = expr.value if isinstance(expr, ast.Subscript) else expr
            symbol = self.lookup(target)
            found.append((symbol if isinstance(symbol, ClassInfo) else None, expr))
        return found

    @cached_property
    def mro(self) -> tuple[ClassInfo, ...]:
        """Return this class and its bases in lookup order; cycles and clashes fall back to depth first."""
        return tuple(self._linear(frozenset(), []))

    @cached_property
    def base_names(self) -> frozenset[str]:
        """Return the simple names of this class and all its bases, unresolved ones included."""
        names = {info.node.name for info in self.mro}
        for info in self.mro:
            for resolved, expr in info.base_exprs:
                if resolved is None:
                    target = expr.value if isinstance(expr, ast.Subscript) else expr
                    names.add(dotted_name(target).rpartition(".")[2])
        return frozenset(names)

    @cached_property
    def is_open(self) -> bool:
        """Return whether attributes may come from where the source does not show them."""
        for info in self.mro:
            if {"__getattr__", "__getattribute__"} & info.methods.keys():
                return True
            for resolved, expr in info.base_exprs:
                target = expr.value if isinstance(expr, ast.Subscript) else expr
                if resolved is None and dotted_name(target).rpartition(".")[2] not in FOREIGN_ROOTS:
                    return True
        return False

    @cached_property
    def own_fields(self) -> dict[str, Field]:
        """Return the data attributes that this class itself declares or assigns."""
        found: dict[str, Field] = {}
        for node in flat_statements(self.node.body):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = Field(node.target.id, self, node.annotation, node.value, node, "declared")
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found[target.id] = Field(target.id, self, None, node.value, node, "declared")
        for name, method in self.methods.items():
            if any(dotted_name(d).rpartition(".")[2] in ("property", "cached_property") for d in method.decorator_list):
                found[name] = Field(name, self, method.returns, None, method, "property")
        for name, field in self._assigned.items():
            found.setdefault(name, field)
        return found

    @cached_property
    def _assigned(self) -> dict[str, Field]:
        found: dict[str, Field] = {}
        for method in self.methods.values():
            for name, field in _assigned_on_self(self, method).items():
                found.setdefault(name, field)
        return found

    def own_assigned(self, name: str) -> bool:
        """Return whether a method of this class assigns an attribute on self."""
        return name in self._assigned

    @cached_property
    def fields(self) -> dict[str, Field]:
        """Return all data attributes, the nearest declaration winning."""
        found: dict[str, Field] = {}
        for info in reversed(self.mro):
            for name, field in info.own_fields.items():
                inherited = found.get(name)
                if field.kind == "assigned" and inherited is not None:
                    continue
                found[name] = field
        return found

    @property
    def is_dataclass(self) -> bool:
        """Return whether the class itself is decorated as a dataclass."""
        return any("dataclass" in dotted_name(d) for d in self.node.decorator_list)

    def find_method(self, name: str, after: ClassInfo | None = None) -> tuple[ClassInfo, FunctionNode] | None:
        """Return the class and definition that a method call reaches, optionally after a class of the MRO."""
        chain = self.mro
        if after is not None and after in chain:
            chain = chain[chain.index(after) + 1 :]
        for info in chain:
            if name in info.methods:
                return info, info.methods[name]
        return None

    def has_attribute(self, name: str) -> bool:
        """Return whether an instance has an attribute, as far as the source shows."""
        return name in self.fields or self.find_method(name) is not None or any(name in c.nested for c in self.mro)

    def is_subclass_of(self, other: ClassInfo) -> bool:
        """Return whether this class is the other, or derives from it."""
        return other in self.mro

    def lookup(self, expr: ast.expr) -> object:
        """Return what an expression stands for in the scope of the class."""
        if isinstance(expr, ast.Name):
            scope: ClassInfo | None = self.outer
            while scope is not None:
                if expr.id in scope.nested and scope.nested[expr.id] is not self:
                    return scope.nested[expr.id]
                scope = scope.outer
        return self.index.resolve_expr(self.module, expr)

    def _linear(self, seen: frozenset[ClassInfo], cycles: list[ClassInfo]) -> list[ClassInfo]:
        """Return the MRO below the classes seen so far, and note where it came back to one of them."""
        if self in seen:
            cycles.append(self)
            return []
        if "mro" in self.__dict__ and not cycles:
            return list(self.mro)
        before = len(cycles)
        bases = [base for base, _ in self.base_exprs if base is not None]
        chains = [base._linear(seen | {self}, cycles) for base in bases]
        chains.append(bases)
        merged = _merge([list(chain) for chain in chains])
        if merged is None:
            merged = list(dict.fromkeys(info for chain in chains for info in chain))
        result = [self, *(info for info in merged if info is not self)]
        if len(cycles) == before:
            self.__dict__["mro"] = tuple(result)
        return result


def _merge(chains: list[list[ClassInfo]]) -> list[ClassInfo] | None:
    """Return the C3 merge of chains, or None where there is none."""
    result: list[ClassInfo] = []
    while True:
        chains = [chain for chain in chains if chain]
        if not chains:
            return result
        for chain in chains:
            head = chain[0]
            if not any(head in other[1:] for other in chains):
                break
        else:
            return None
        result.append(head)
        chains = [[info for info in chain if info is not head] for chain in chains]


def _assigned_on_self(owner: ClassInfo, method: FunctionNode) -> dict[str, Field]:
    """Return the attributes that a method assigns on its first argument."""
    if not method.args.args or any(dotted_name(d) in ("staticmethod", "classmethod") for d in method.decorator_list):
        return {}
    me = method.args.args[0].arg
    found: dict[str, Field] = {}
    for node in flat_statements(method.body):
        targets: list[ast.expr] = []
        annotation: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets = [t for target in node.targets for t in _flat_targets(target)]
        elif isinstance(node, ast.AnnAssign):
            targets, annotation = [node.target], node.annotation
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == me:
                value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
                found.setdefault(target.attr, Field(target.attr, owner, annotation, value, node, "assigned"))
    return found


def _flat_targets(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [t for element in target.elts for t in _flat_targets(element)]
    return [target]
