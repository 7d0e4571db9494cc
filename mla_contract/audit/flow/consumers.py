"""Runs of functions that take metadata by annotation or by an isinstance test, such as indexer operations."""

from __future__ import annotations

from mla_contract.audit.flow.events import Events
from mla_contract.audit.flow.interpreter import Interpreter
from mla_contract.audit.flow.values import DATA, Obj, Role
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.index import ModuleIndex
from mla_contract.audit.model.types import TypeRef


def run_consumers(index: ModuleIndex, classes: tuple[ClassInfo, ...]) -> Events:
    """Run every function, outside the classes themselves, of the modules that name one of the classes."""
    words = tuple(sorted({cls.node.name.encode() for cls in classes}))
    if not words:
        return Events()
    machine = Interpreter(index, None, (DATA, DATA))
    for module in list(index.containing(*words)):
        for function in index.functions(module):
            if not function.mentions("etadata"):
                continue
            bound = Obj(TypeRef(function.owner), Role.PLAIN) if function.owner is not None else None
            machine.run(function, bound)
    return machine.events
