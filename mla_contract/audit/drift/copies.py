"""Private copies of shared planners: by their name, or by how much of the code they have in common."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mla_contract.audit.drift.functions import LENGTHS, function_hash, likeness, planner_definitions, shingles
from mla_contract.audit.model.backends import CANDIDATE_WORDS
from mla_contract.audit.model.index import Function, module_name
from mla_contract.audit.model.module import FunctionNode, Module
from mla_contract.audit.model.nodes import walk
from mla_contract.audit.source.tree import PACKAGE

if TYPE_CHECKING:
    from mla_contract.audit.project import Project

ALIKE = 0.55
"""Share of code in common from which a function of another name is a copy."""

_MIN_LINES = 6
"""Shorter functions look alike by chance."""

_SIZE_RATIO = 1.7
"""Beyond this ratio of lengths two functions hardly have ALIKE of their code in common; they are not compared."""

_VOCABULARY = 0.7
"""Share of a function's attributes and globals that a copy's text must name: cheap, and spares most comparisons."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A function that does the work of a shared one.

    Attributes:
        function: The private function.
        original: The shared function.
        alike: Share of code in common, 0 to 1.
        digest: Hash of the private function.
        original_digest: Hash of the shared function.
    """

    function: Function
    original: Function
    alike: float
    digest: str
    original_digest: str

    @property
    def is_equal(self) -> bool:
        """Return whether the two are the same function, formatting and names apart."""
        return self.digest == self.original_digest

    @property
    def same_name(self) -> bool:
        """Return whether the copy has the name of the shared function, a leading underscore apart."""
        return _plain(self.function) == _plain(self.original)


def find_copies(project: Project, shared: tuple[Function, ...]) -> tuple[Copy, ...]:
    """Return the private copies of the shared planners of a tree, in the order of their places."""
    found: dict[str, Copy] = {}
    by_name = {_plain(function): function for function in shared}
    for function in planner_definitions(project.index):
        original = by_name.get(_plain(function))
        if original is not None and _is_private(function, original, shared):
            found[function.qualname] = _copy(function, original)
    for function, original, alike in _lookalikes(project, shared):
        known = found.get(function.qualname)
        if known is None or (not known.same_name and alike > known.alike):
            found[function.qualname] = _copy(function, original, alike)
    return tuple(sorted(found.values(), key=lambda c: (c.function.module.path, c.function.node.lineno)))


def _copy(function: Function, original: Function, alike: float | None = None) -> Copy:
    if alike is None:
        alike = likeness(shingles(function.node), shingles(original.node))
    return Copy(function, original, alike, function_hash(function.node), function_hash(original.node))


def _lookalikes(project: Project, shared: tuple[Function, ...]) -> Iterator[tuple[Function, Function, float]]:
    """Yield functions of any name that have most of their code in common with a shared one."""
    models = [(f, _span(f.node), _vocabulary(f.node), shingles(f.node)) for f in shared if _span(f.node) >= _MIN_LINES]
    for module in _modules(project):
        for function in project.index.functions(module):
            span = _span(function.node)
            candidates = [m for m in models if m[1] <= _SIZE_RATIO * span and span <= _SIZE_RATIO * m[1]]
            if not candidates:
                continue
            segment = "\n".join(module.lines[function.node.lineno - 1 : function.node.end_lineno])
            own: Counter[tuple[str, ...]] | None = None
            for original, _, vocabulary, model in candidates:
                if sum(word in segment for word in vocabulary) < _VOCABULARY * len(vocabulary):
                    continue
                own = own or shingles(function.node)
                alike = likeness(own, model)
                if alike >= ALIKE and _is_private(function, original, shared):
                    yield function, original, alike


def _modules(project: Project) -> Iterator[Module]:
    """Yield the modules that a copy may be in: those of backends, and all of an out-of-tree package."""
    for module in project.index.containing(*CANDIDATE_WORDS, also=b"Backend"):
        if module.path.startswith(f"{PACKAGE}/") and _handles_lengths(module.path, project):
            yield module
    for path in project.index.tree.files:
        if not path.startswith(f"{PACKAGE}/") and _handles_lengths(path, project):
            found = project.index.get(module_name(path))
            if found is not None:
                yield found


def _handles_lengths(path: str, project: Project) -> bool:
    data = project.index.tree.files[path].data
    return any(word in data for word in LENGTHS)


def _is_private(function: Function, original: Function, shared: tuple[Function, ...]) -> bool:
    """Return whether a function is neither shared itself, nor an override, nor a caller of the shared one."""
    if any(function.node is other.node for other in shared):
        return False
    if function.owner is not None and original.owner is not None and function.owner.is_subclass_of(original.owner):
        return False
    return not _calls(function, original)


def _calls(function: Function, original: Function) -> bool:
    index = function.module.index
    for node in walk(function.node):
        if isinstance(node, ast.Call) and index is not None:
            symbol = index.resolve_expr(function.module, node.func)
            if isinstance(symbol, Function) and symbol.node is original.node:
                return True
    return False


def _plain(function: Function) -> str:
    return function.node.name.lstrip("_")


def _span(node: FunctionNode) -> int:
    """Return the lines of a function's body, its docstring left out."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return (node.end_lineno or node.lineno) - body[0].lineno + 1 if body else 0


def _vocabulary(node: FunctionNode) -> frozenset[str]:
    """Return the attributes and global names of a function's body."""
    local = {child.arg for child in walk(node) if isinstance(child, ast.arg)}
    local |= {c.id for c in walk(node) if isinstance(c, ast.Name) and isinstance(c.ctx, ast.Store)}
    words = {child.attr for child in walk(node) if isinstance(child, ast.Attribute)}
    return frozenset(words | {c.id for s in node.body for c in walk(s) if isinstance(c, ast.Name)} - local)
