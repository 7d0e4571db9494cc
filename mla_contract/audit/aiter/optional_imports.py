"""What a module asks of aiter before it relies on it: imports that it tries and can do without."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from mla_contract.audit.aiter.targets import PACKAGE, catches_absence
from mla_contract.audit.model.index import Function, ModuleIndex
from mla_contract.audit.model.module import Import, Module, imported_names
from mla_contract.audit.model.nodes import walk


def optional_imports(index: ModuleIndex, module: Module) -> Iterator[Import]:
    """Yield the imports of aiter that a module tries and can do without: anything else then asks before it calls.

    The import may stand in the ``try`` block itself, or in a function of the module that the block calls.
    """
    for node in walk(module.tree):
        if isinstance(node, ast.Try) and catches_absence(node):
            for child in (c for statement in node.body for c in walk(statement)):
                yield from _imports(module, child)
                if isinstance(child, ast.Call) and isinstance(child.func, ast.Name):
                    called = index.resolve(module, child.func.id)
                    if isinstance(called, Function) and called.module is module:
                        for inner in walk(called.node):
                            yield from _imports(module, inner)


def _imports(module: Module, node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        for _, target in imported_names(module.package, node):
            if target.module.partition(".")[0] == PACKAGE:
                yield target
