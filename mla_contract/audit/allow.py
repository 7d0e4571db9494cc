"""``# mla: allow CODE -- reason``: exceptions beside their code, each with a reason, none forgotten."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mla_contract.audit.finding import Finding
from mla_contract.audit.select import Catalogue
from mla_contract.audit.source import UnreadableSource
from mla_contract.audit.source.tree import SourceFile
from mla_contract.audit.tool_rules import GROUP, INVALID_ALLOW, UNUSED_ALLOW, tool_finding

_MARK = re.compile(rb"mla:[ \t]*allow")
_COMMENT = re.compile(r"(?:^|#)\s*mla:\s*allow\b(?P<words>.*?)(?:\s--\s*(?P<reason>.*))?$")
_FORM = "write # mla: allow CODE[, CODE] -- reason"


@dataclass(frozen=True, slots=True)
class Allow:
    """One comment that allows findings.

    Attributes:
        path: File.
        line: Line of the comment.
        target: Line whose findings it allows.
        words: Codes and names of rules, as written.
        reason: Why, empty where none is given.
    """

    path: str
    line: int
    target: int
    words: tuple[str, ...]
    reason: str


def find_allows(files: Iterable[SourceFile]) -> Iterator[Allow]:
    """Yield the allow comments of files; text in strings is none."""
    for file in files:
        if _MARK.search(file.data):
            try:
                text = file.text()
            except UnreadableSource:
                continue
            yield from _allows_in(file.path, text)


def apply_allows(
    findings: Iterable[Finding], files: Mapping[str, SourceFile], catalogue: Catalogue
) -> tuple[list[Finding], int]:
    """Take away what comments allow, and add what is wrong with the comments.

    Returns:
        The findings that remain with those about the comments, and how many were taken away.
    """
    by_place: dict[tuple[str, int], list[Finding]] = {}
    every = list(findings)
    for finding in every:
        if finding.group != GROUP:
            by_place.setdefault((finding.path, finding.line), []).append(finding)
    allowed: set[int] = set()
    about: list[Finding] = []
    for allow in find_allows(files.values()):
        problem = _allow_reason(allow, catalogue)
        if problem is not None:
            about.append(tool_finding(INVALID_ALLOW, allow.path, allow.line, problem, help=_FORM))
            continue
        here = by_place.get((allow.path, allow.target), [])
        for word in allow.words:
            rule = catalogue.rule_of(word)
            matched = [finding for finding in here if rule is not None and finding.code == rule.code]
            allowed.update(id(finding) for finding in matched)
            if not matched:
                message = f"{word} is allowed here, and reports nothing on line {allow.target}"
                about.append(tool_finding(UNUSED_ALLOW, allow.path, allow.line, message, help="remove the comment"))
    remaining = [finding for finding in every if id(finding) not in allowed]
    return remaining + about, len(allowed)


def _allow_reason(allow: Allow, catalogue: Catalogue) -> str | None:
    """Return why a comment allows nothing, or None."""
    if not allow.words:
        return "this comment names no rule to allow"
    for word in allow.words:
        rule = catalogue.rule_of(word)
        if rule is None:
            return f"{word} is not a rule; {catalogue.suggestion(word)}name one rule by its code or name"
        if rule.group == GROUP:
            return f"{word} cannot be allowed: it is about the audit, not about the code"
    if not allow.reason:
        return f"no reason is given for allowing {', '.join(allow.words)}"
    return None


def _allows_in(path: str, text: str) -> Iterator[Allow]:
    lines = text.split("\n")
    for token in _comments(text):
        match = _COMMENT.search(token.string.removeprefix("#"))
        if match is None:
            continue
        line, column = token.start
        alone = not lines[line - 1][:column].strip()
        words = tuple(word for word in re.split(r"[,\s]+", match["words"].strip(" :")) if word)
        target = _next_code_line(lines, line) if alone else line
        yield Allow(path, line, target, words, (match["reason"] or "").strip())


def _next_code_line(lines: list[str], line: int) -> int:
    """Return the first line after a comment that is not a comment itself, so that comments may be stacked."""
    following = line + 1
    while following <= len(lines) and lines[following - 1].lstrip().startswith("#"):
        following += 1
    return following


def _comments(text: str) -> Iterator[tokenize.TokenInfo]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token
    except (tokenize.TokenError, SyntaxError):
        return  # what does not tokenize is reported as unreadable; comments before that place still count
