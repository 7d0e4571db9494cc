"""Functions as comparable things: a hash that survives reformatting, and the shared planners of a tree.

A private copy of a shared split or chunk function drifts apart from it release by release, so profiles record a hash
of each shared one, and the audit looks for copies.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING

from mla_contract.audit.model.backends import BUILDER
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.index import Function, ModuleIndex, module_name
from mla_contract.audit.model.module import FunctionNode
from mla_contract.audit.model.nodes import text_of, walk
from mla_contract.audit.source.tree import PACKAGE

if TYPE_CHECKING:
    from mla_contract.audit.project import Project

PLANNER = re.compile(
    r"_?(?:split|reorder_batch|plan|build|get|align)_\w*?"
    r"(?:decodes_(?:and|prefills)|prefill_chunks|context_chunks|chunked_context|chunk_plan|dcp_local_seq_lens)\w*"
)
"""Names of vLLM's functions that split a batch, cut prefills or contexts into chunks, or localise lengths."""

LENGTHS = (b"_lens", b"query_start_loc")
"""What a file contains that handles the lengths of requests."""

_DEFINITION = re.compile(rb"def (\w+)\(")
_SHINGLE = 4
"""Tokens in a run: two or three match in any two functions, and longer runs make one edit count for too much."""

_SKIPPED = frozenset({"ctx", "kind", "type_comment", "type_params", "decorator_list", "returns", "annotation"})


def function_hash(node: FunctionNode) -> str:
    """Return a hash of what a function does: equal for a reformatted, re-annotated or renamed copy.

    Docstrings, annotations, decorators, comments, the message of an assert and the function's own name do not count;
    parameters and local names count by the order in which they appear.
    """
    return blake2b(" ".join(tokens(node, local_names(node))).encode(), digest_size=8).hexdigest()


def local_names(node: FunctionNode) -> dict[str, str]:
    """Return what each parameter and local name of a function is called in its normal form."""
    names = {node.name: "f"}
    for child in _in_order(node):
        if isinstance(child, ast.arg):
            names.setdefault(child.arg, f"v{len(names)}")
        elif isinstance(child, ast.Name) and not isinstance(child.ctx, ast.Load):
            names.setdefault(child.id, f"v{len(names)}")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            names.setdefault(child.name, f"v{len(names)}")
    return names


def tokens(root: ast.AST, names: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Yield the normal form of a node.

    Args:
        root: The node.
        names: What names are replaced by.
    """
    pending: list[ast.AST | str] = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, str):
            yield node
            continue
        kind = type(node).__name__
        yield "Assign" if kind == "AnnAssign" else kind
        parts: list[ast.AST | str] = []
        for name, child in _parts(node):
            if isinstance(child, ast.AST):
                parts.append(child)
            elif (isinstance(child, str) and name in ("id", "name")) or isinstance(node, ast.arg):
                parts.append(names.get(str(child), str(child)))
            else:
                parts.append(child if isinstance(child, str) and name != "value" else _literal(child))
        pending += [";", *reversed(parts)]


def _literal(value: object) -> str:
    # Python writes no decimal of more than 4,300 digits.
    return hex(value) if isinstance(value, int) and value.bit_length() > 10_000 else repr(value)


def shingles(node: FunctionNode) -> Counter[tuple[str, ...]]:
    """Return the runs of tokens of a function, every local name being the same token; the measure of a likeness."""
    found = list(tokens(node, dict.fromkeys(local_names(node), "v")))
    return Counter(tuple(found[i : i + _SHINGLE]) for i in range(max(len(found) - _SHINGLE + 1, 1)))


def likeness(left: Counter[tuple[str, ...]], right: Counter[tuple[str, ...]]) -> float:
    """Return the share of the runs of tokens that two functions have in common, from 0 to 1."""
    total = (left | right).total()
    return (left & right).total() / total if total else 0.0


def shared_functions(project: Project) -> dict[str, str]:
    """Return the hash of each shared split, reorder and chunk function of a tree by its qualified name."""
    return {function.qualname: function_hash(function.node) for function in shared_planners(project)}


def shared_planners(project: Project) -> tuple[Function, ...]:
    """Return the shared split, reorder and chunk functions of a tree, by qualified name.

    A module-level function is shared when other modules import it, when builders of other modules inherit its use, or
    when a shared one calls it; of several of one name, the one of vLLM itself that most modules import. A static method
    is shared when builders of other modules inherit it.
    """
    subclassed = _subclassed_builders(project)
    sources = _sources(project.index)
    by_name: dict[str, list[Function]] = {}
    for function in planner_definitions(project.index, sources):
        by_name.setdefault(function.node.name, []).append(function)
    found = [f for functions in by_name.values() for f in functions if f.owner in subclassed and _is_static(f)]
    rest: list[Function] = []
    for functions in by_name.values():
        module_level = [f for f in functions if f.owner is None]
        counts = {f.qualname: _importers(sources, f) for f in module_level}
        if module_level:
            best = max(module_level, key=lambda f: (f.module.path.startswith(f"{PACKAGE}/"), counts[f.qualname]))
            users = [cls.node for cls in subclassed if cls.module is best.module]
            is_shared = counts[best.qualname] > 0 or _is_named_in(best.node.name, users)
            (found if is_shared else rest).append(best)
    found += [f for f in rest if _is_named_in(f.node.name, [g.node for g in found if g.module is f.module])]
    return tuple(sorted(found, key=lambda f: f.qualname))


def planner_definitions(index: ModuleIndex, sources: Mapping[str, bytes] | None = None) -> Iterator[Function]:
    """Yield every function of a tree that has the name of a planner.

    Args:
        index: The tree.
        sources: Its files that handle lengths, where they are known.
    """
    for path, data in (sources or _sources(index)).items():
        if any(PLANNER.fullmatch(found.decode()) for found in _DEFINITION.findall(data)):
            module = index.get(module_name(path))
            if module is not None:
                yield from (f for f in index.functions(module) if PLANNER.fullmatch(f.node.name))


def _sources(index: ModuleIndex) -> dict[str, bytes]:
    """Return the files that handle the lengths of requests."""
    files = index.tree.files.items()
    return {path: file.data for path, file in files if any(word in file.data for word in LENGTHS)}


def _importers(sources: dict[str, bytes], function: Function) -> int:
    """Return how many other files name both a function and the module that defines it."""
    name = function.node.name.encode()
    last = re.compile(rb"\b(?:from|import)\b[^\n]*\b" + function.module.name.rpartition(".")[2].encode() + rb"\b")
    return sum(
        name in data and last.search(data) is not None for path, data in sources.items() if path != function.module.path
    )


def _subclassed_builders(project: Project) -> set[ClassInfo]:
    builders = {b.builder for b in (*project.mla_backends, *project.indexer_backends)}
    return {
        base for cls in builders for base in cls.mro[1:] if base.module is not cls.module and BUILDER in base.base_names
    }


def _is_static(function: Function) -> bool:
    return any(text_of(d) == "staticmethod" for d in function.node.decorator_list)


def _is_named_in(name: str, nodes: list[ast.ClassDef] | list[FunctionNode]) -> bool:
    return any(isinstance(child, ast.Name) and child.id == name for node in nodes for child in walk(node))


def _in_order(root: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what counts of it, in the order of the fields."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending += reversed([child for _, child in _parts(node) if isinstance(child, ast.AST)])


def _parts(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield what counts of a node, by field; the same on every supported version of Python."""
    if isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield "targets", node.target
            yield "value", node.value
        return
    for name, value in ast.iter_fields(node):
        if name in _SKIPPED or value is None or (name == "msg" and isinstance(node, ast.Assert)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not (name == "body" and _is_text(child)):
                yield name, child


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
