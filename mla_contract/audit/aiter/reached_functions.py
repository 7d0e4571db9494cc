"""Which functions of a tree the sparse MLA path runs, as far as they may call into aiter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from mla_contract.audit.model.index import Function, ModuleIndex, module_name
from mla_contract.audit.model.module import Module
from mla_contract.audit.model.nodes import literal_text, walk

PACKAGE = b"aiter"
IMPORTS = (b"from aiter", b"import aiter", b'"aiter.', b"'aiter.")
SPARSE = (b"parse", b"ndexer")
METADATA = (b"MLA", b"Indexer")
TOPIC = re.compile(r"mla|sparse|indexer|mqa|kv_indptr|topk_indices", re.IGNORECASE)
WORD = re.compile(rb"[A-Za-z_]\w+")


def reached_functions(index: ModuleIndex) -> list[Function]:
    """Return the functions that may call aiter for sparse MLA, by place.

    These are all functions of the modules that import aiter and name MLA or indexer metadata with sparse attention, and
    of other modules that import aiter and that these import, the functions on that topic that a reached one names:
    directly, or as the custom operation they are registered for.
    """
    data = {
        module_name(path): file.data
        for path, file in index.tree.files.items()
        if path.endswith(".py") and PACKAGE in file.data
    }
    importing = {name for name, source in data.items() if any(word in source for word in IMPORTS)}
    roots = {name for name, source in data.items() if b"Metadata" in source and _is_sparse(source)}
    found: dict[tuple[str, int], Function] = {}
    words: set[str] = set()
    for name in sorted(roots):
        words.update(word.decode() for word in WORD.findall(data[name]))
        if name in importing and (module := index.get(name)) is not None:
            _add(found, index.functions(module))
    wrappers = [n for n in sorted(importing - roots) if any(_imports(data[root], n) for root in roots)]
    candidates: list[Function] = []
    operations: dict[str, set[str]] = {}
    for name in wrappers:
        module = index.get(name)
        if module is not None:
            candidates += [f for f in index.functions(module) if TOPIC.search(source_of(f))]
            _registrations(module, operations)
    _close(candidates, operations, words, found)
    return [found[key] for key in sorted(found)]


def source_of(function: Function) -> str:
    """Return the source lines of a function."""
    return "\n".join(function.module.lines[function.node.lineno - 1 : function.node.end_lineno])


def _imports(source: bytes, name: str) -> bool:
    """Return whether a source names a module in full, or imports it by its last name."""
    return name.encode() in source or f"import {name.rpartition('.')[2]}\n".encode() in source


def _is_sparse(source: bytes) -> bool:
    return any(word in source for word in METADATA) and any(word in source for word in SPARSE)


def _close(
    candidates: list[Function],
    operations: dict[str, set[str]],
    words: set[str],
    found: dict[tuple[str, int], Function],
) -> None:
    """Add the candidates that are named by what is reached, until there are no more."""
    pending = [f for f in candidates if not f.node.name.startswith("__")]
    grew = True
    while grew:
        grew = False
        for function in list(pending):
            names = {function.node.name} | {op for op, fs in operations.items() if function.node.name in fs}
            if names & words:
                pending.remove(function)
                _add(found, [function])
                words.update(_words(function.node))
                grew = True


def _words(node: ast.AST) -> Iterator[str]:
    for child in walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr


def _registrations(module: Module, operations: dict[str, set[str]]) -> None:
    """Collect which function implements which custom operation: a call with the name as text and the function."""
    for node in walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        keywords = {k.arg: k.value for k in node.keywords}
        name = literal_text(keywords.get("op_name"))
        function = keywords.get("op_func")
        if name is not None and isinstance(function, ast.Name):
            operations.setdefault(name, set()).add(function.id)


def _add(found: dict[tuple[str, int], Function], functions: Iterator[Function] | list[Function]) -> None:
    for function in functions:
        found.setdefault((function.module.path, function.node.lineno), function)
