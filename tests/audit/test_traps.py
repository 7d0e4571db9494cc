"""Every trap of the audit as a small tree: what must be found stands in the sources, and each trap has a twin.

``fixtures/traps/skeleton`` has vLLM's extension points and one plain backend; the files of a trap are laid over it.
``# expect: CODE Class.field [severity], ...`` names the findings of a line (an error where no severity is given). The
twin of a trap is the tree with each ``# twin: CODE`` in the place of its line, and ``# expect-twin:`` is what must be
found there: where a guard keeps the audit silent, its twin without the guard proves that it was the guard.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from mla_contract.audit.finding import Finding
from mla_contract.audit.project import Project, open_project
from mla_contract.audit.rules import missing_field, never_set, override_signature
from mla_contract.audit.source.tree import SourceFile, SourceTree, open_tree
from mla_contract.audit.source.walk import source_digest

TRAPS = Path(__file__).parent / "fixtures" / "traps"
EXAMPLE_TREE = Path(__file__).parents[2] / "examples" / "tree"
RULES = (missing_field.RULE, never_set.RULE, override_signature.RULE)
NAMES = sorted(path.name for path in TRAPS.iterdir() if path.is_dir() and path.name != "skeleton")
WITHOUT_TWIN = {
    "fp13_reservation": "the reservation is judged by the rules of the POLICY group, which are not run here",
    "fp15_lazy_vendor_names": "names of a vendor's package are judged by the SIGNATURE rules, which are not run here",
}

Place = tuple[str, int, str, str, str]
"""Path, line, code, dotted end of class and field, severity."""

_EXPECT = re.compile(r"# expect(-twin)?: ([^#]+)")
_TWIN = re.compile(r"# twin: (.*?)\s*(?=# expect|$)")
_ITEM = re.compile(r"(\w+) ([\w.]+)(?: \[(\w+)\])?")


def memory_tree(files: Mapping[str, str | bytes], label: str = "memory") -> SourceTree:
    """Return a tree of files that are on no disk."""
    data = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
    sources = {path: SourceFile(path, data[path], source_digest(data[path])) for path in sorted(data)}
    return SourceTree(Path(label), sources, label)


@cache
def trap_files(name: str) -> dict[str, str]:
    """Return the files of a trap, laid over those of the skeleton."""
    files: dict[str, str] = {}
    for root in (TRAPS / "skeleton", TRAPS / name):
        files.update({str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*.py"))})
    return files


def twin_of(files: Mapping[str, str]) -> dict[str, str]:
    """Return files with every twin line in the place of its original."""
    return {path: "\n".join(_twin_line(line) for line in text.splitlines()) for path, text in files.items()}


def expected(files: Mapping[str, str], *, twin: bool) -> list[Place]:
    """Return the findings that the markers of files ask for."""
    places: list[Place] = []
    for path, text in files.items():
        for number, line in enumerate(text.splitlines(), 1):
            for suffix, items in _EXPECT.findall(line):
                if bool(suffix) is twin:
                    for code, subject, severity in _ITEM.findall(items):
                        places.append((path, number, code, subject, severity or "error"))
    return places


def found(project: Project) -> list[Finding]:
    """Return the findings of the REQUIRED rules."""
    return [finding for rule in RULES for finding in rule.check(project)]


def differences(findings: list[Finding], places: list[Place]) -> list[str]:
    """Return, in words, each finding that no marker expects and each marker that no finding meets."""
    open_places = Counter(places)
    problems = []
    for finding in findings:
        subject = f"{finding.cls}.{finding.field}"
        for place in open_places:
            path, line, code, end, severity = place
            here = (finding.path, finding.line, finding.code, str(finding.severity))
            if here == (path, line, code, severity) and f".{subject}".endswith(f".{end}") and open_places[place]:
                open_places[place] -= 1
                break
        else:
            problems.append(f"unexpected {finding.path}:{finding.line} {finding.code} {subject} [{finding.severity}]")
    return problems + [f"missing {place}" for place in open_places.elements()]


def _twin_line(line: str) -> str:
    match = _TWIN.search(line)
    if match is None:
        return line
    return line[: len(line) - len(line.lstrip())] + match.group(1)


@pytest.mark.parametrize("name", NAMES)
def test_required_rules_trap_finds_exactly_what_is_marked(name: str) -> None:
    """No marked finding is missing, and nothing else is found."""
    files = trap_files(name)
    assert differences(found(open_project(memory_tree(files, name))), expected(files, twin=False)) == []


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_TWIN])
def test_required_rules_twin_of_trap_finds_the_opposite(name: str) -> None:
    """Without its guard a silent trap is found, and with one a loud trap is silent."""
    files = trap_files(name)
    twin = twin_of(files)
    assert twin != files
    assert sorted(expected(files, twin=True)) != sorted(expected(files, twin=False))
    assert differences(found(open_project(memory_tree(twin, name))), expected(files, twin=True)) == []


def test_required_rules_skeleton_alone_finds_nothing() -> None:
    """The tree that all traps share is clean, and its backend is seen."""
    project = open_project(memory_tree(trap_files("skeleton")))
    assert [backend.cls.name for backend in project.mla_backends] == ["PlainBackend"]
    assert found(project) == []


def test_differences_other_place_or_severity_is_reported() -> None:
    """The comparison is not vacuous: a wrong line, a wrong severity and a missing marker each count."""
    files = trap_files("fn01_tuple_unpacking")
    findings = found(open_project(memory_tree(files)))
    places = expected(files, twin=False)
    assert len(findings) == len(places) == 2
    assert differences(findings, places) == []
    (path, line, code, subject, severity), *rest = places
    for wrong in ((path, line + 1, code, subject, severity), (path, line, code, subject, "warning")):
        assert len(differences(findings, [wrong, *rest])) == 2
    assert len(differences(findings, rest)) == 1
    assert len(differences([], places)) == 2


def test_required_rules_example_tree_finds_its_faults_and_no_others() -> None:
    """The bundled tree has one lean backend, at fault in two ways, and the backend beside it is clean."""
    project = open_project(open_tree(EXAMPLE_TREE))
    assert {b.cls.name for b in project.mla_backends} == {"GoodMLASparseBackend", "LeanMLASparseBackend"}
    assert [b.cls.name for b in project.indexer_backends] == ["ExampleIndexerBackend"]
    findings = [(f.path, f.line, f.code, (f.cls or "").rpartition(".")[2], f.field) for f in found(project)]
    layer = "vllm/model_executor/layers/attention/mla_attention.py"
    backend = "vllm/v1/attention/backends/mla/lean_sparse.py"
    assert sorted(findings) == [
        (layer, 22, "REQ001", "LeanMLASparseMetadata", "num_decode_tokens"),
        (layer, 32, "REQ001", "LeanMLASparseMetadata", "num_decode_tokens"),
        (backend, 44, "REQ002", "LeanMLASparseMetadata", "num_prefills"),
    ]
