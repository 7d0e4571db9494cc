"""POL003: a tensor whose size depends on the chunk, allocated inside the loop over the chunks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.flow.conditions import is_metadata_class
from mla_contract.audit.model.classes import ClassInfo
from mla_contract.audit.model.nodes import text_of, walk
from mla_contract.audit.model.types import TypeRef, bindings_for, read_annotation
from mla_contract.audit.policy.allocations import Allocation, allocation, mentions
from mla_contract.audit.rule import Page, Rule

if TYPE_CHECKING:
    from mla_contract.audit.flow.events import Read
    from mla_contract.audit.model.index import Function
    from mla_contract.audit.project import Project

PAGE = Page(
    what=(
        "A function loops over the chunks of a metadata object (a sequence field of a metadata class) and allocates in "
        "the loop a tensor whose size is computed from the chunk. Tensors of constant size, empty ones, and index "
        "vectors made like one that the chunk holds are left out."
    ),
    why=(
        "Every turn asks the allocator for another size, so memory fragments and its peak is reached under load, where "
        "the profiling run never was. A buffer that is new in each turn cannot keep what an earlier turn put in it."
    ),
    incident=(
        "ROCm sparse indexer: a gather buffer per chunk, not reserved while profiling: memory that the profiler never "
        "saw, and chunks that reuse the gather of the one before read a fresh buffer."
    ),
    bad=(
        "for chunk in metadata.chunks:\n"
        "    keys = torch.empty((chunk.total_seq_lens, head_dim), dtype=torch.uint8, device=device)\n"
        "    gather_cache(cache, keys, chunk.block_table)\n"
    ),
    good=(
        "(all_keys,) = current_workspace_manager().get_simultaneous(((total_seq_lens, head_dim), torch.uint8))\n"
        "for chunk in metadata.chunks:\n"
        "    keys = all_keys[: chunk.total_seq_lens]\n"
        "    gather_cache(cache, keys, chunk.block_table)\n"
    ),
)


def check(project: Project) -> Iterator[Finding]:
    """Report the allocations in every loop over a sequence field of metadata."""
    reads = [*project.consumers.reads, *(r for events in project.layers.values() for r in events.reads)]
    sequences: dict[int, tuple[Read, ClassInfo]] = {}
    functions: dict[int, Function] = {}
    elements: dict[tuple[ClassInfo, str], ClassInfo | None] = {}
    for read in reads:
        if read.batch or id(read.node) in sequences:
            continue
        key = (read.holder, read.attr)
        if key not in elements:
            elements[key] = _element(read)
        element = elements[key]
        if element is not None:
            sequences[id(read.node)] = (read, element)
            functions.setdefault(id(read.function.node), read.function)
    found = [f for function in functions.values() for f in _in_function(function, sequences)]
    yield from sorted(found, key=Finding.sort_key)


def _in_function(function: Function, sequences: dict[int, tuple[Read, ClassInfo]]) -> Iterator[Finding]:
    for loop in walk(function.node):
        if not isinstance(loop, ast.For):
            continue
        read = next((sequences[id(node)] for node in walk(loop.iter) if id(node) in sequences), None)
        if read is None:
            continue
        names = _derived(loop)
        for statement in loop.body:
            for node in walk(statement):
                found = allocation(node)
                if found is None or found.is_constant or found.name.endswith("_like"):
                    continue
                if any(mentions(dim, names) for dim in found.dims):
                    yield _finding(function, loop, read[0], read[1], found)


def _finding(function: Function, loop: ast.For, read: Read, element: ClassInfo, found: Allocation) -> Finding:
    size = ", ".join(text_of(dim) for dim in found.dims)
    name = function.qualname.rpartition(":")[2]
    return RULE.finding(
        function.module.path,
        found.node,
        f"{name} allocates {found.name} of ({size}) in its loop over {text_of(loop.iter)}: the size depends on the "
        "chunk",
        cls=element.qualname,
        field=read.path,
        reader=function.qualname,
        help="ask the workspace manager once, before the loop, for the largest chunk, and slice that in the loop",
    )


def _element(read: Read) -> ClassInfo | None:
    """Return the metadata class of the elements of a sequence field, or None."""
    field = read.holder.fields.get(read.attr)
    if field is None or field.annotation is None:
        return None
    bindings = bindings_for(TypeRef(read.holder), field.owner)
    element = read_annotation(field.annotation, field.owner.module, field.owner, bindings).element
    if element is None or len(element.refs) != 1:
        return None
    cls = element.refs[0].cls
    return cls if is_metadata_class(cls) or "hunk" in cls.node.name else None


def _derived(loop: ast.For) -> frozenset[str]:
    """Return the names that hold the chunk, or something computed from it in the loop."""
    names = {node.id for node in walk(loop.target) if isinstance(node, ast.Name)}
    assignments = [node for statement in loop.body for node in walk(statement) if isinstance(node, ast.Assign)]
    before = -1
    while before != len(names):
        before = len(names)
        for node in assignments:
            if mentions(node.value, names):
                found = [n for target in node.targets for n in walk(target) if isinstance(n, ast.Name)]
                names |= {n.id for n in found if isinstance(n.ctx, ast.Store)}
    return frozenset(names)


RULE = Rule("POL003", "loop-allocation", "policy", Severity.WARNING, PAGE, check)
