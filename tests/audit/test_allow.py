"""Allow comments and the choice of rules."""

from __future__ import annotations

import pytest

from mla_contract.audit.allow import apply_allows, find_allows
from mla_contract.audit.finding import Finding, Severity
from mla_contract.audit.rule import Page, Rule
from mla_contract.audit.select import Catalogue, selected_codes
from mla_contract.audit.source import AuditError
from mla_contract.audit.source.tree import SourceFile
from mla_contract.audit.tool_rules import TOOL_RULES, check_nothing

PAGE = Page("What.", "Why.", "Incident.", "bad", "good")
RULES = (
    Rule("REQ001", "missing-field", "required", Severity.ERROR, PAGE, check_nothing),
    Rule("REQ002", "unset-field", "required", Severity.WARNING, PAGE, check_nothing),
    Rule("POL001", "ignored-flag", "policy", Severity.WARNING, PAGE, check_nothing),
)
CATALOGUE = Catalogue.of(RULES, TOOL_RULES)
TOOL_CODES = {rule.code for rule in TOOL_RULES}


def finding(line: int, code: str = "REQ001", path: str = "a.py") -> Finding:
    """Return a finding of a rule at a line."""
    rule = next(rule for rule in CATALOGUE.rules if rule.code == code)
    return Finding(path, line, 1, code, rule.name, rule.group, rule.severity, "message")


def applied(source: str, *findings: Finding) -> tuple[list[tuple[str, int]], int]:
    """Return code and line of what remains in one file, and how many findings were allowed."""
    files = {"a.py": SourceFile("a.py", source.encode(), "")}
    remaining, allowed = apply_allows(findings, files, CATALOGUE)
    return sorted((each.code, each.line) for each in remaining), allowed


@pytest.mark.parametrize(
    "source",
    [
        "x = 1  # mla: allow REQ001 -- set by the runner\n",
        "x = 1  # mla: allow missing-field -- set by the runner\n",
        "x = 1  #mla:allow REQ001 -- why\n",
        "x = 1  # noqa: E501  # mla: allow REQ001 -- why\n",
    ],
)
def test_apply_allows_comment_on_the_line_takes_the_finding_away(source: str) -> None:
    """Code and name do, with other comments before it."""
    assert applied(source, finding(1)) == ([], 1)


def test_apply_allows_comment_alone_is_for_the_line_below() -> None:
    """A comment on its own line is for the code under it, other comments between them or not."""
    assert applied("# mla: allow REQ001 -- why\nx = 1\n", finding(2)) == ([], 1)
    stacked = "# mla: allow REQ001 -- why\n# mla: allow REQ002 -- why\nx = 1\n"
    assert applied(stacked, finding(3), finding(3, "REQ002")) == ([], 2)


def test_apply_allows_list_of_codes_allows_each() -> None:
    """One comment may name several rules."""
    source = "x = 1  # mla: allow REQ001, unset-field -- why\n"
    assert applied(source, finding(1), finding(1, "REQ002")) == ([], 2)


def test_apply_allows_other_rule_line_or_file_remains() -> None:
    """A comment allows what it names where it stands, and nothing else."""
    source = "x = 1  # mla: allow REQ001 -- why\ny = 2\n"
    others = (finding(1, "REQ002"), finding(2), finding(1, path="b.py"))
    remaining, allowed = applied(source, finding(1), *others)
    assert remaining == [("REQ001", 1), ("REQ001", 2), ("REQ002", 1)]
    assert allowed == 1


@pytest.mark.parametrize(
    "comment",
    [
        "# mla: allow REQ001",
        "# mla: allow REQ001 --",
        "# mla: allow REQ001 -- ",
        "# mla: allow -- why",
        "# mla: allow",
        "# mla: allow REQ999 -- why",
        "# mla: allow required -- why",
        "# mla: allow TOOL003 -- why",
        "# mla: allow REQ001 because",
    ],
)
def test_apply_allows_invalid_comment_allows_nothing(comment: str) -> None:
    """Without a reason, or with a word that names no rule, the finding stays and the comment is one more."""
    assert applied(f"x = 1  {comment}\n", finding(1)) == ([("REQ001", 1), ("TOOL002", 1)], 0)


def test_apply_allows_unused_comment_is_a_finding() -> None:
    """A comment that allows nothing is reported, word by word."""
    assert applied("x = 1  # mla: allow REQ001 -- why\n") == ([("TOOL003", 1)], 0)
    source = "x = 1  # mla: allow REQ001, REQ002 -- why\n"
    assert applied(source, finding(1)) == ([("TOOL003", 1)], 1)


@pytest.mark.parametrize(
    "source",
    [
        'x = "# mla: allow REQ001 -- why"\n',
        '"""\n# mla: allow REQ001 -- why\n"""\n',
        "x = 1  # see the docs on mla: allowances\n",
        "x = 1  # write mla: allow REQ001 -- why\n",
    ],
    ids=["string", "docstring", "another word", "prose"],
)
def test_find_allows_text_that_is_no_comment_of_ours_is_none(source: str) -> None:
    """Strings and prose are not instructions."""
    assert list(find_allows([SourceFile("a.py", source.encode(), "")])) == []


def test_find_allows_broken_file_gives_the_comments_before_the_break() -> None:
    """A file that does not tokenize does not stop the audit."""
    broken = SourceFile("a.py", b"x = 1  # mla: allow REQ001 -- why\ny = (\n", "")
    undecodable = SourceFile("b.py", b"# \xe9 mla: allow\n", "")
    assert [allow.line for allow in find_allows([broken, undecodable])] == [1]


def test_apply_allows_tool_findings_cannot_be_allowed() -> None:
    """What is said about the audit itself stays."""
    remaining, allowed = applied("x = 1  # mla: allow TOOL001 -- why\n", finding(1, "TOOL001"))
    assert ("TOOL001", 1) in remaining
    assert allowed == 0


@pytest.mark.parametrize(
    ("select", "ignore", "expected"),
    [
        ([], [], {"REQ001", "REQ002", "POL001", *TOOL_CODES}),
        (["REQ001"], [], {"REQ001"}),
        (["REQ"], [], {"REQ001", "REQ002"}),
        (["R"], [], {"REQ001", "REQ002"}),
        (["ignored-flag"], [], {"POL001"}),
        (["required,policy"], ["REQ002"], {"REQ001", "POL001"}),
        (["ALL"], ["tool", "P"], {"REQ001", "REQ002"}),
        ([], ["missing-field", "tool"], {"REQ002", "POL001"}),
    ],
)
def test_selected_codes_words_stand_for_rules(select: list[str], ignore: list[str], expected: set[str]) -> None:
    """Codes, beginnings of codes, names and groups may be mixed; what is ignored is taken away last."""
    assert selected_codes(CATALOGUE, select, ignore) == expected


@pytest.mark.parametrize("word", ["REQ003", "X", "missing_field", "requird", "req"])
@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_selected_codes_unknown_word_is_refused(word: str, option: str) -> None:
    """A typo must not silently select nothing; the message lists what there is."""
    words = {"--select": ([word], []), "--ignore": ([], [word])}[option]
    with pytest.raises(AuditError, match=f"{option} {word}: no such rule") as caught:
        selected_codes(CATALOGUE, *words)
    assert "REQ001 missing-field" in str(caught.value.expected)


def test_suggestion_close_word_is_offered() -> None:
    """A near miss names what was probably meant."""
    assert "missing-field" in CATALOGUE.suggestion("missing_field")
    assert CATALOGUE.suggestion("zzz") == ""
