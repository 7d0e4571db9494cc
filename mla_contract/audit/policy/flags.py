"""Flags on metadata: what a test of one guards, and which other calls do the same work."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from mla_contract.audit.flow.calls import init_parameters
from mla_contract.audit.flow.events import Read
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.index import Function, ModuleIndex, module_name
from mla_contract.audit.model.nodes import walk

MIN_SHARED_WORDS = 2
"""One word in common, such as "gather", is shared by calls that do different work."""

SHARED_PART = 0.75
"""Names of one operation differ by a suffix: one word more, as in cp_gather_indexer_k_quant_cache_triton."""


@dataclass(frozen=True, slots=True)
class MetadataCall:
    """A call that handles a metadata object.

    Attributes:
        name: Last part of the callee's name.
        attrs: Attributes of the object among the arguments.
        node: The call.
    """

    name: str
    attrs: frozenset[str]
    node: ast.Call

    def is_like(self, other: MetadataCall) -> bool:
        """Return whether two calls do the same work: like names, and at least one attribute in common.

        A name of one word, such as ``view`` or ``copy_``, tells nothing about the work.
        """
        mine, theirs = set(self.name.strip("_").split("_")), set(other.name.strip("_").split("_"))
        shared = len(mine & theirs)
        alike = shared >= MIN_SHARED_WORDS and shared >= SHARED_PART * min(len(mine), len(theirs))
        return alike and bool(self.attrs & other.attrs)


class Consumer:
    """A function that handles objects of one metadata class.

    Attributes:
        function: The function.
        reads: Its reads of such objects.
    """

    def __init__(self, function: Function, reads: Iterable[Read]) -> None:
        """Describe a function by its reads of one class."""
        self.function = function
        self.reads = list(reads)
        self._attr_of = {id(read.node): read.attr for read in self.reads}

    @property
    def attrs(self) -> frozenset[str]:
        """Return the attributes that the function reads."""
        return frozenset(self._attr_of.values())

    def calls(self, body: Iterable[ast.AST]) -> list[MetadataCall]:
        """Return the calls in a body that get attributes of the object."""
        aliases = self._aliases
        found: list[MetadataCall] = []
        for statement in body:
            for node in walk(statement):
                if isinstance(node, ast.Call) and (name := callee_name(node)):
                    attrs = self._mentioned([*node.args, *(k.value for k in node.keywords)], aliases)
                    if attrs:
                        found.append(MetadataCall(name, attrs, node))
        return found

    def guarded(self, attr: str) -> list[MetadataCall]:
        """Return the calls that a test of an attribute decides about."""
        aliases = {name for name, attrs in self._aliases.items() if attr in attrs}
        found: list[MetadataCall] = []
        for block in blocks(self.function.node):
            for position, statement in enumerate(block):
                if not isinstance(statement, ast.If) or not self._tests(statement.test, attr, aliases):
                    continue
                found += self.calls([*statement.body, *statement.orelse])
                if leaves(statement.body) and not isinstance(statement.body[-1], ast.Raise):
                    found += self.calls(block[position + 1 :])
        return found

    def _tests(self, test: ast.expr, attr: str, aliases: set[str]) -> bool:
        return any(
            self._attr_of.get(id(node)) == attr or (isinstance(node, ast.Name) and node.id in aliases)
            for node in operands(test)
        )

    @cached_property
    def _aliases(self) -> dict[str, frozenset[str]]:
        """Return the local names that hold attributes of the object."""
        found: dict[str, frozenset[str]] = {}
        for node in walk(self.function.node):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
                pairs = [(target, value)]
                if (
                    isinstance(target, ast.Tuple)
                    and isinstance(value, ast.Tuple)
                    and len(target.elts) == len(value.elts)
                ):
                    pairs = list(zip(target.elts, value.elts, strict=True))
                for name, part in pairs:
                    if isinstance(name, ast.Name) and (attr := self._attr_of.get(id(_core(part)))):
                        found[name.id] = found.get(name.id, frozenset()) | {attr}
        return found

    def _mentioned(self, nodes: Iterable[ast.expr], aliases: dict[str, frozenset[str]]) -> frozenset[str]:
        found: set[str] = set()
        for root in nodes:
            for node in walk(root):
                if id(node) in self._attr_of:
                    found.add(self._attr_of[id(node)])
                elif isinstance(node, ast.Name):
                    found |= aliases.get(node.id, frozenset())
        return frozenset(found)


def varying_arguments(index: ModuleIndex, cls: ClassInfo, fields: set[str]) -> set[str]:
    """Return those of some fields that a constructor call, in a module parsed so far, gives anything but a constant."""
    names = init_parameters(cls)
    found: set[str] = set()
    call = f"{cls.node.name}(".encode()
    for path in sorted(index.parsed_paths()):
        module = index.get(module_name(path))
        data = index.tree.files[path].data
        if module is None or call not in data or not any(field.encode() in data for field in fields):
            continue
        for node in walk(module.tree):
            if isinstance(node, ast.Call) and callee_name(node) == cls.node.name:
                given = dict(zip(names, node.args, strict=False)) | {k.arg: k.value for k in node.keywords if k.arg}
                found |= {name for name, value in given.items() if not isinstance(value, ast.Constant)}
    return found & fields


def operands(test: ast.expr) -> Iterator[ast.expr]:
    """Yield what a test decides by: its operands under ``and``, ``or`` and ``not``."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from operands(value)
    else:
        yield _core(test)


def blocks(root: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield every list of statements below a node."""
    for node in walk(root):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                yield block


def leaves(body: list[ast.stmt]) -> bool:
    """Return whether control never falls off the end of a body."""
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def callee_name(node: ast.Call) -> str:
    """Return the last part of the name of what is called, or an empty string."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _core(node: ast.expr) -> ast.expr:
    """Return the expression under negation and ``bool()``."""
    if isinstance(node, ast.UnaryOp):
        return _core(node.operand)
    if isinstance(node, ast.Call) and callee_name(node) == "bool" and node.args:
        return _core(node.args[0])
    return node
