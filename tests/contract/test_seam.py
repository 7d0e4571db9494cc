"""Seam files: their text, and that they fail when the types behind them are unknown."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mla_contract import TIERS, InvalidContract, members, write_seam
from tests.contract.mypy_runs import ROOT, run_mypy

STUBS = Path(__file__).parent / "stubs"
BACKEND = """
from dataclasses import dataclass
{imports}

@dataclass(frozen=True)
class Good{base}:
    num_reqs: int
    num_actual_tokens: int
    num_decodes: int
    num_prefills: int
    num_decode_tokens: int

@dataclass
class Bad{base}:
    num_reqs: int
    num_actual_tokens: int | None

class Outer:
    class Inner(Good):
        pass
"""


Checker = Callable[..., list[str]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache directory that the runs of this file share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def errors_of_seam(tmp_path: Path, cache: Path) -> Checker:
    """Return a function that writes a backend and a seam for it, and returns mypy's errors about the seam."""
    return partial(_errors_of_seam, tmp_path, cache)


def _errors_of_seam(folder: Path, cache: Path, *classes: str, backend: str, options: tuple[str, ...] = ()) -> list[str]:
    (folder / "backend.py").write_text(backend)
    seam = folder / "seam.py"
    seam.write_text(write_seam(classes))
    found, _ = run_mypy(
        [seam], "--ignore-missing-imports", *options, cwd=folder, sources=(STUBS, ROOT, folder), cache=cache
    )
    return [report.text for report in found if Path(report.path).name == "seam.py" and report.kind == "error"]


def test_write_seam_class_that_lacks_three_fields_names_each(errors_of_seam: Checker) -> None:
    """A type checker lists missing members only up to two; the seam names all of them, and the conflicting type."""
    texts = errors_of_seam("backend:Bad", backend=BACKEND.format(imports="", base=""))
    missing = [name for name in members(TIERS["counts"]) if any(f'no attribute "{name}"' in text for text in texts)]
    assert missing == ["num_decodes", "num_prefills", "num_decode_tokens"]
    assert any('"takes_counts" has incompatible type "Bad"' in text for text in texts)
    assert len(texts) == 4


def test_write_seam_good_and_nested_classes_pass(errors_of_seam: Checker) -> None:
    """A frozen dataclass and a nested class that provide the tier are accepted."""
    texts = errors_of_seam("backend:Good", "backend:Outer.Inner", backend=BACKEND.format(imports="", base=""))
    assert texts == []


def test_write_seam_imports_skipped_fails_by_its_controls(errors_of_seam: Checker) -> None:
    """With `--follow-imports skip` every type is Any: the bad class would pass, and the controls fail instead."""
    texts = errors_of_seam(
        "backend:Bad",
        backend=BACKEND.format(imports="", base=""),
        options=("--follow-imports", "skip"),
    )
    assert len(texts) == 2
    assert all(text.startswith('Unused "type: ignore" comment') for text in texts)


def test_write_seam_base_class_unknown_fails_by_its_control(errors_of_seam: Checker) -> None:
    """A class with a base that resolved to Any has every attribute; its control says so."""
    backend = BACKEND.format(imports="from nowhere_to_be_found import Base", base="(Base)")
    texts = errors_of_seam("backend:Bad", backend=backend)
    assert [text.split(" comment")[0] for text in texts] == ['Unused "type: ignore"']


def test_write_seam_absent_class_is_an_error(errors_of_seam: Checker) -> None:
    """A class name that the module does not have is not taken for a pass."""
    texts = errors_of_seam("backend:Absent", backend=BACKEND.format(imports="", base=""))
    assert any('Module "backend" has no attribute "Absent"' in text for text in texts)


def test_write_seam_every_tier_is_valid_python() -> None:
    """All tiers at once give one file that parses and reads every member of every tier."""
    text = write_seam(["some.package:Metadata"], tuple(TIERS))
    tree = ast.parse(text)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for tier, protocol in TIERS.items():
        seam = functions[f"seam_0_{tier.replace('-', '_')}"]
        reads = {node.attr for node in ast.walk(seam) if isinstance(node, ast.Attribute)}
        assert reads == set(members(protocol))


@pytest.mark.parametrize(
    ("classes", "tiers", "part"),
    [
        ([], ("counts",), "at least one class"),
        (["a.b:C"], (), "at least one tier"),
        (["a.b.C"], ("counts",), "'a.b.C' is not a class; write it as package.module:Class"),
        (["a.b:"], ("counts",), "is not a class"),
        ([":C"], ("counts",), "is not a class"),
        (["a..b:C"], ("counts",), "is not a class"),
        (["a-b:C"], ("counts",), "is not a class"),
        (["a.b:C\nimport os"], ("counts",), "is not a class"),
        (["a.import:C"], ("counts",), "keyword 'import'"),
        (["a.b:C", "a.b:C"], ("counts",), "class given twice: a.b:C"),
        (["a.b:C"], ("counts", "counts"), "tier given twice: counts"),
        (["a.b:C"], ("count",), "unknown tier 'count'; tiers are batch, counts"),
        ("a.b:C", ("counts",), "got the string 'a.b:C'"),
    ],
)
def test_write_seam_bad_input_raises_with_the_reason(classes: list[str], tiers: tuple[str, ...], part: str) -> None:
    """Each malformed, repeated or unknown name is refused with a message that says what is wrong."""
    with pytest.raises(InvalidContract, match="(?s)" + part.replace("(", "\\(")):
        write_seam(classes, tiers)


def test_write_seam_well_formed_input_is_accepted() -> None:
    """The control of the test above: the same kind of input, well formed, gives a file."""
    assert "from a.b import C as Imported0" in write_seam(["a.b:C"], ("counts",))
