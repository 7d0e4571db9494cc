"""Faults put into a real release: each must be found, by class and field, so that silence there means something."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pytest

from mla_contract.audit.finding import Severity
from mla_contract.audit.flow.events import Read
from mla_contract.audit.project import Project, open_project
from mla_contract.audit.rules import missing_field
from mla_contract.audit.source.tree import SourceFile, SourceTree, open_tree
from mla_contract.audit.source.walk import source_digest

pytestmark = pytest.mark.slow

RELEASE = "0.33.0"
LAYER = "vllm.model_executor.layers.attention.mla_attention"
SPARSE = "vllm.model_executor.layers.attention.sparse_mla_attention"
BACKENDS = "vllm.v1.attention.backends.mla"
DELETED, RENAMED = "deleted", "renamed"


@dataclass(frozen=True)
class Mutant:
    """One declaration to lose.

    Attributes:
        cls: Qualified name of the class that declares the field.
        field: Name of the field.
        how: Whether the declaration is deleted or renamed.
        victim: A class that must be found to lack the field: the class itself or one that inherits from it.
        opens: Fields that the class lacks anyway, and whose reads a known value of this field kept out of reach.
    """

    cls: str
    field: str
    how: str
    victim: str
    opens: tuple[str, ...] = ()


MUTANTS = (
    Mutant(
        f"{BACKENDS}.xpu_mla_sparse.XPUMLASparseMetadata",
        "num_decode_tokens",
        DELETED,
        "XPUMLASparseMetadata",
        opens=("prefill",),
    ),
    Mutant(f"{BACKENDS}.rocm_aiter_mla.AiterMLADecodeMetadata", "max_qo_len", DELETED, "AiterMLADecodeMetadata"),
    Mutant(f"{LAYER}.MLACommonMetadata", "num_decodes", DELETED, "MLACommonMetadata"),
    Mutant(f"{LAYER}.MLACommonDecodeMetadata", "block_table", RENAMED, "MLACommonDecodeMetadata"),
    Mutant(f"{SPARSE}.SparseMLACommonMetadata", "block_table", RENAMED, "ROCMAiterMLASparseMetadata"),
    Mutant(f"{SPARSE}.SparseMLACommonMetadata", "req_id_per_token", DELETED, "FlashMLASparseMetadata"),
    Mutant(f"{BACKENDS}.indexer.DeepseekV32IndexerPrefillChunkMetadata", "skip_kv_gather", DELETED, "ChunkMetadata"),
    Mutant(f"{BACKENDS}.indexer.DeepseekV32IndexerMetadata", "num_prefills", RENAMED, "DeepseekV32IndexerMetadata"),
)


@pytest.fixture(scope="module")
def tree(release_tree: Callable[[str], Path]) -> Iterator[SourceTree]:
    """Return the release, with every source parsed once for all mutants."""
    parse = lru_cache(maxsize=None)(ast.parse)
    gc.disable()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ast, "parse", parse)
        yield open_tree(release_tree(RELEASE))
    gc.enable()


@pytest.fixture(scope="module")
def sound(tree: SourceTree) -> Project:
    """Return the project of the release as it is."""
    return open_project(tree, release=RELEASE)


def unconditional_reads(project: Project) -> list[Read]:
    """Return the reads of declared fields that every MLA or indexer batch of some backend makes."""
    reads = [read for backend in project.mla_backends for read in project.layer_reads(backend)]
    reads += [read for read in project.consumers.reads if "Indexer" in read.holder.name]
    return [read for read in reads if not (read.condition or read.defaulted or read.batch or read.missing)]


def losers(project: Project, owner: str, field: str) -> set[tuple[str, str]]:
    """Return the classes that lack a field once a class loses its declaration, as far as something reads it there.

    A class on whose instances the builder sets the field lacks nothing.
    """
    found = set()
    for read in unconditional_reads(project):
        declarations = [info.qualname for info in read.holder.mro if field in info.own_fields]
        is_set = any((info, field) in project.dynamic for info in read.holder.mro)
        if read.attr == field and declarations == [owner] and not is_set:
            found.add((read.holder.qualname, field))
    return found


def mutated(tree: SourceTree, path: str, name: str, mutant: Mutant) -> SourceTree:
    """Return a tree whose class has lost a declaration, and whose constructor calls in that file do not pass it."""
    lines = tree.files[path].text().split("\n")
    changed = 0
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for index, statement in enumerate(node.body):
                target = statement.target if isinstance(statement, ast.AnnAssign) else None
                if isinstance(target, ast.Name) and target.id == mutant.field:
                    first, last = statement.lineno, statement.end_lineno or statement.lineno
                    after = node.body[index + 1] if index + 1 < len(node.body) else None
                    if isinstance(after, ast.Expr):
                        last = after.end_lineno or last
                    indent = " " * statement.col_offset
                    lines[first - 1 : last] = [f"{indent}pass"] * (last - first + 1)
                    if mutant.how == RENAMED:
                        lines[first - 1] = f"{indent}{mutant.field}_renamed: object = None"
                    changed += 1
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            for keyword in node.keywords:
                first, last = keyword.lineno, keyword.end_lineno or keyword.lineno
                if keyword.arg == mutant.field and lines[first - 1].lstrip().startswith(f"{mutant.field}="):
                    lines[first - 1 : last] = [""] * (last - first + 1)
    assert changed == 1
    data = "\n".join(lines).encode()
    compile(data, path, "exec", flags=ast.PyCF_ONLY_AST)
    return replace(tree, files={**tree.files, path: SourceFile(path, data, source_digest(data))})


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.victim}.{m.field}-{m.how}")
def test_missing_field_lost_declaration_is_found(mutant: Mutant, tree: SourceTree, sound: Project) -> None:
    """An error names exactly the classes that lost the field, at reads that were sound before."""
    module, _, name = mutant.cls.rpartition(".")
    path = module.replace(".", "/") + ".py"
    expected = losers(sound, mutant.cls, mutant.field)
    assert any(mutant.victim in cls for cls, _ in expected), expected
    project = open_project(mutated(tree, path, name, mutant), release=RELEASE)
    found = [f for f in missing_field.RULE.check(project) if f.severity is Severity.ERROR]
    opened = {(cls, field) for cls, _ in expected for field in mutant.opens}
    assert {(f.cls, f.field) for f in found} == expected | opened
    places = {
        (r.function.module.path, r.node.lineno)
        for r in unconditional_reads(sound)
        if r.attr == mutant.field or r.attr in mutant.opens
    }
    assert {(f.path, f.line) for f in found if f.path != path} <= places


def test_missing_field_release_without_mutation_has_no_error(sound: Project) -> None:
    """The control: the same release, the same code, no fault, no error."""
    assert [f for f in missing_field.RULE.check(sound) if f.severity is Severity.ERROR] == []
