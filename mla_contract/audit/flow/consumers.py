"""Runs of functions that take metadata by annotation or by an isinstance test, such as indexer operations."""

from __future__ import annotations

from mla_contract.audit.flow.interpreter import Interpreter
from mla_contract.audit.flow.machine import Events
from mla_contract.audit.flow.values import DATA, Obj, Role
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.index import Function, ModuleIndex
from mla_contract.audit.model.types import TypeRef


def run_consumers(index: ModuleIndex, classes: tuple[ClassInfo, ...]) -> Events:
    """Run every function, outside the classes themselves, of the modules that name one of the classes."""
    words = tuple(sorted({cls.node.name.encode() for cls in classes}))
    if not words:
        return Events()
    machine = Interpreter(index, None, (DATA, DATA))
    for module in list(index.containing(*words)):
        for function in index.functions(module):
            if not _mentions_metadata(function):
                continue
            bound = Obj(TypeRef(function.owner), Role.PLAIN) if function.owner is not None else None
            machine.run(function, bound)
    return machine.events


def _mentions_metadata(function: Function) -> bool:
    """Return whether a function says that it handles metadata, by a parameter, a name or an annotation."""
    segment = function.module.lines[function.node.lineno - 1 : function.node.end_lineno]
    return any("etadata" in line for line in segment)
