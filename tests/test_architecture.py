"""ARCHITECTURE.md names every room of the package, and nothing that is not there; names and imports are in order."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mla_contract"
ONE_PACKAGE = "mla_contract.audit.model"
"""The class model, whose modules may refer to each other."""


def test_table_of_rooms_equals_the_tree() -> None:
    """Each package, and each module beside the packages, has one line; no line is about something else."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    stated = Counter(re.findall(r"^\| `(mla_contract/[^`]*)` \|", text, re.MULTILINE))
    packages = {f"{path.parent.relative_to(ROOT).as_posix()}/" for path in PACKAGE.rglob("__init__.py")}
    modules = {path.relative_to(ROOT).as_posix() for path in PACKAGE.glob("*.py")}
    assert set(stated) == packages - {"mla_contract/"} | modules
    assert set(stated.values()) == {1}


def test_paths_that_documents_name_exist() -> None:
    """What a page calls a path of the repository is one."""
    pages = [ROOT / "ARCHITECTURE.md", ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        named = re.findall(
            r"`((?:mla_contract|tests|docs|scripts|benchmarks|examples)/[\w./-]*)`", page.read_text("utf-8")
        )
        made = re.findall(r"^# (\S+\.py)$", page.read_text("utf-8"), re.MULTILINE)
        missing = [one for one in named if not (ROOT / one).exists() and one not in made]
        assert not missing, (page.name, missing)


def test_no_class_name_is_defined_twice() -> None:
    """One name is one thing: a reader of two rooms never takes one class for another."""
    names = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def _imports(path: Path, known: Collection[str]) -> Iterator[str]:
    """Yield what a module imports of the package, wherever the import stands: submodules, else the module itself."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = (f"{node.module}.{one.name}" for one in node.names)
            yield from (part if part in known else node.module for part in parts)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.startswith("mla_contract"))


def _circle(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Return modules that import each other in a circle; empty where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def test_modules_import_each_other_in_no_circle_but_the_class_model() -> None:
    """Imports for type checkers and those inside functions count as well; the class model counts as one module."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }
    imports: dict[str, set[str]] = {}
    for name, path in paths.items():
        own = _module(name)
        found = {_module(one) for one in _imports(path, paths) if one in paths}
        imports.setdefault(own, set()).update(found - {own})
    assert _circle(imports) == []
    assert set(_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}


def _module(name: str) -> str:
    """Return a module's name; that of the class model for each of its modules."""
    return ONE_PACKAGE if name.startswith(f"{ONE_PACKAGE}.") else name
