"""docs/clauses is what the clauses say."""

from __future__ import annotations

from pathlib import Path

from mla_contract.contract.docs import main, pages, stale_pages

DIRECTORY = Path(__file__).resolve().parents[2] / "docs" / "clauses"


def test_clause_pages_are_the_files() -> None:
    """Every page is on disk as it would be written now, and no other file lies there."""
    assert stale_pages(DIRECTORY) == []


def test_clause_docs_with_changed_page_are_stale(tmp_path: Path) -> None:
    """A page that was edited by hand, or that is missing, is named and written again."""
    assert main([str(tmp_path)]) == 0
    assert stale_pages(tmp_path) == []
    (tmp_path / "MLA203.md").write_text("edited", encoding="utf-8")
    (tmp_path / "MLA999.md").write_text("no clause", encoding="utf-8")
    assert stale_pages(tmp_path) == ["MLA203.md", "MLA999.md"]
    assert main([str(tmp_path), "--check"]) == 1
    assert main([str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == set(pages())
