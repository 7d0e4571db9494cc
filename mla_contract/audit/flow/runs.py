"""The runs that the audit makes: each builder, the shared layer with each backend, and typed consumers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from mla_contract.audit.flow.calls import CONTEXT_GETTER
from mla_contract.audit.flow.events import Construct, Events, Guard, Read
from mla_contract.audit.flow.interpreter import Interpreter
from mla_contract.audit.flow.memo import Memo
from mla_contract.audit.flow.values import DATA, ClassVal, Const, Lin, Obj, Role, Value, join
from mla_contract.audit.model.backends import Backend, method_of
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.index import Function, ModuleIndex
from mla_contract.audit.model.nodes import walk
from mla_contract.audit.model.types import TypeRef

LAYER = "MLAAttention"
BATCH = "CommonAttentionMetadata"


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """A function through which a step enters the shared layer, and the capability it stands behind."""

    layer: ClassInfo
    function: Function
    condition: str | None


@dataclass(frozen=True, slots=True)
class BuilderRun:
    """What the builder of a backend does.

    Attributes:
        function: Its ``build``, None where the source has none.
        events: What happened in it.
        values: For each field of the metadata, the value it always gets, where the source tells.
        given: Fields that some construction is given, or that are set afterwards.
        complete: Whether every construction shows all its arguments.
    """

    function: Function | None
    events: Events
    values: dict[str, Value]
    given: frozenset[str]
    complete: bool

    def constructs(self, cls: ClassInfo) -> list[Construct]:
        """Return the constructions of a class or its subclasses."""
        return [c for c in self.events.constructs if c.cls.is_subclass_of(cls)]


def run_builder(index: ModuleIndex, backend: Backend, batch: ClassInfo | None) -> BuilderRun:
    """Run the builder of a backend on an abstract batch, an instance of the given class."""
    build = method_of(backend.builder, "build")
    machine = Interpreter(index, backend, None)
    machine.inline_all = True
    if build is None or build.owner is None or build.owner.node.name == "AttentionMetadataBuilder":
        return BuilderRun(None, machine.events, {}, frozenset(), False)
    common: Value = Obj(TypeRef(batch), Role.BATCH) if batch else DATA
    machine.run(build, Obj(TypeRef(backend.builder), Role.BUILDER), common_attn_metadata=common)
    cls = backend.metadata.cls
    constructs = [c for c in machine.events.constructs if c.cls.is_subclass_of(cls)]
    stored = {s.attr for s in machine.events.stores if s.cls.is_subclass_of(cls)}
    given = frozenset(name for c in constructs for name, _ in c.values) | stored
    complete = bool(constructs) and all(c.complete for c in constructs)
    values = (
        {name: _field_value(cls, name, constructs) for name in cls.fields if name not in stored} if complete else {}
    )
    known: dict[str, Value] = {name: value for name, value in values.items() if isinstance(value, Const | Lin | Obj)}
    return BuilderRun(build, machine.events, known, given, complete)


def run_layer(index: ModuleIndex, backend: Backend, built: BuilderRun, entries: tuple[LayerEntry, ...]) -> Events:
    """Run the entry points of the shared MLA layer with a backend's classes."""
    events = Events()
    if backend.impl is None or not backend.is_mla:
        return events
    values = tuple(sorted(built.values.items()))
    metadata = Obj(backend.metadata, Role.METADATA, values=values)
    impl = Obj(TypeRef(backend.impl), Role.IMPL)
    parts = (("attn_backend", ClassVal(TypeRef(backend.cls))), ("impl", impl))
    # One memo for all entry points of a backend: the layer, the op it registers and the wrapper around it meet again.
    memo = Memo()
    for entry in entries:
        bound = Obj(TypeRef(entry.layer), Role.LAYER, values=parts)
        machine = Interpreter(index, backend, (metadata, bound))
        machine.memo = memo
        if entry.condition:
            machine.guards.append(Guard(entry.condition, capability=True))
        machine.run(entry.function, bound if entry.function.owner is not None else None)
        events.extend(machine.events)
    return events


def find_entries(index: ModuleIndex) -> tuple[LayerEntry, ...]:
    """Return the functions through which a step enters the shared MLA layer of a tree."""
    return tuple(
        entry
        for module in index.containing(b"class MLAAttention")
        for layer in index.classes(module)
        if layer.node.name == LAYER and layer.find_method("forward")
        for entry in _entries_of(index, layer)
    )


def _entries_of(index: ModuleIndex, layer: ClassInfo) -> Iterator[LayerEntry]:
    for module in index.containing(CONTEXT_GETTER.encode()):
        for function in index.functions(module):
            if function.node.name == CONTEXT_GETTER or not function.mentions(CONTEXT_GETTER):
                continue
            if not _calls(function.node, CONTEXT_GETTER):
                continue
            if function.module is layer.module and function.owner is None:
                yield LayerEntry(layer, function, None)
            elif function.owner is None and _is_mla_consumer(index, function, layer):
                yield LayerEntry(layer, function, f"{function.node.name} of {function.module.name} is in use")
    forward = method_of(layer, "forward")
    if forward is not None:
        yield LayerEntry(layer, forward, None)


def batch_class(index: ModuleIndex) -> ClassInfo | None:
    """Return the class of a builder's input batch."""
    for module in index.containing(b"class " + BATCH.encode()):
        for cls in index.classes(module):
            if cls.node.name == BATCH:
                return cls
    return None


def unguarded_first(reads: list[Read]) -> list[Read]:
    """Return one read per place and class, the one with the fewest capabilities in its way."""
    best: dict[tuple[str, int, int, str, str], Read] = {}
    for read in reads:
        key = (read.function.module.path, read.node.lineno, read.node.col_offset, read.holder.qualname, read.attr)
        known = best.get(key)
        if known is None or _weight(read) < _weight(known):
            best[key] = read
    return [best[key] for key in sorted(best)]


def _weight(read: Read) -> tuple[int, int]:
    return (sum(g.capability for g in read.guards), len(read.guards))


def _field_value(cls: ClassInfo, name: str, constructs: list[Construct]) -> Value:
    result: Value | None = None
    for construct in constructs:
        given = dict(construct.values)
        field = cls.fields[name]
        if name in given:
            value: Value = given[name]
        elif isinstance(field.default, ast.Constant):
            value = Const(field.default.value)
        else:
            value = DATA
        result = value if result is None else join(result, value)
    return result if result is not None else DATA


def _calls(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id == name
        for child in walk(node)
    )


def _is_mla_consumer(index: ModuleIndex, function: Function, layer: ClassInfo) -> bool:
    """Return whether a function outside the layer's module serves MLA layers: it names something of that module."""
    for node in walk(function.node):
        if isinstance(node, ast.Name):
            symbol = index.resolve(function.module, node.id)
            if isinstance(symbol, ClassInfo | Function) and symbol.module is layer.module:
                return True
    return False
