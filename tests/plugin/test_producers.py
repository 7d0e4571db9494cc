"""Every need that record and batch do not show has a producer that ships, or its clauses' pages say that none does."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import mla_contract
from mla_contract.backends.sparse.target import fresh_indexer
from mla_contract.contract.clauses.need import Need, fact, traced
from mla_contract.contract.clauses.producers import CALLERS_ALONE, PRODUCERS, Producer, told_name
from mla_contract.contract.clauses.registry import all_clauses
from mla_contract.contract.step.facts import Facts
from mla_contract.contract.step.trace import BuildTrace
from mla_contract.plugin.facts import OWN_FACTS
from mla_contract.testing.sparse_targets import CUDA_SPARSE, ROCM_SPARSE

HOME = Path(mla_contract.__file__).parent


def keywords(path: Path, called: str) -> set[str]:
    """Return the keywords of all calls of a name in the sources below a path."""
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return {
        str(word.arg)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == called
        for word in node.keywords
    }


def decided_codes(path: Path) -> set[str]:
    """Return the codes that checks of the suite decide by comparing records themselves, as their verdicts name them."""
    return {
        str(code.value)
        for file in sorted(path.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword) and node.arg == "decided" and isinstance(node.value, ast.Tuple)
        for code in node.value.elts
        if isinstance(code, ast.Constant)
    }


def produced() -> dict[str, set[Producer]]:
    """Return what the shipped code tells, read from the code itself."""
    own = keywords(HOME / "backends" / "sparse" / "config.py", "Facts")
    targets = [made() for made in (*ROCM_SPARSE.values(), *CUDA_SPARSE.values(), fresh_indexer)]
    tested = {
        one.name
        for target in targets
        for one in fields(Facts)
        if getattr(target.facts, one.name) not in (None, one.default)
    }
    suite = HOME / "testing"
    traced_there = keywords(suite, "BuildTrace")
    for call in ("replace", "judged"):
        traced_there |= keywords(suite / "conformance.py", call) & {one.name for one in fields(BuildTrace)}
    compared = {
        told_name(need) for clause in all_clauses() if clause.id in decided_codes(suite) for need in clause.needs
    }
    told = {
        Producer.ENGINE: {f"facts.{name}" for name in keywords(HOME / "plugin" / "facts.py", "Facts")}
        | {f"trace.{name}" for name in keywords(HOME / "plugin", "BuildTrace")},
        Producer.OWN_BACKENDS: {f"facts.{name}" for name in own.intersection(OWN_FACTS)},
        Producer.CONFORMANCE: {f"facts.{name}" for name in tested}
        | {f"trace.{name}" for name in traced_there}
        | {name for name in compared if name is not None},
    }
    found: dict[str, set[Producer]] = {}
    for producer, names in told.items():
        for name in names:
            found.setdefault(name, set()).add(producer)
    return found


def faults(needs: Iterable[Need]) -> list[str]:
    """Return what is wrong with the lists of producers for some needs."""
    real, found = produced(), []
    for name in sorted({name for need in needs if (name := told_name(need)) is not None}):
        stated = set(PRODUCERS.get(name, ()))
        if not stated and name not in CALLERS_ALONE:
            found.append(f"{name}: no producer")
        if stated != real.get(name, set()):
            found.append(f"{name}: stated {sorted(stated)}, in the code {sorted(real.get(name, set()))}")
    return found


def test_needs_of_all_clauses_have_the_producers_that_are_stated() -> None:
    """The lists are what the code does, no more and no less, and hold nothing that no clause needs."""
    needs = [need for clause in all_clauses() for need in clause.needs]
    assert faults(needs) == []
    names = {told_name(need) for need in needs}
    assert PRODUCERS.keys() | CALLERS_ALONE <= names
    assert not PRODUCERS.keys() & CALLERS_ALONE


def test_need_without_producer_is_a_fault() -> None:
    """A new need that nobody tells fails, be it of a fact that exists or of a trace."""
    assert faults([fact("topk_skipped")]) == ["facts.topk_skipped: no producer"]
    assert faults([Need("trace.weather", lambda step: False, traced=True)]) == ["trace.weather: no producer"]
    assert faults([traced("alive")]) == []
