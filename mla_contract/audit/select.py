"""Which rules are reported: the words of ``--select`` and ``--ignore``, and what they are looked up in."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mla_contract.audit.rule import Rule
from mla_contract.audit.source import AuditError

_PREFIX = re.compile(r"[A-Z]+[0-9]*")


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All rules of a run, by code, prefix of a code, name and group.

    Attributes:
        rules: The rules, ordered by code.
    """

    rules: tuple[Rule, ...]

    @classmethod
    def of(cls, *rules: Sequence[Rule]) -> Catalogue:
        """Return the catalogue of several lists of rules."""
        return cls(tuple(sorted((rule for part in rules for rule in part), key=lambda rule: rule.code)))

    def codes_of(self, word: str) -> frozenset[str]:
        """Return the codes that a word stands for; empty when it stands for none."""
        word = word.strip()
        if word == "ALL":
            return frozenset(rule.code for rule in self.rules)
        exact = {rule.code for rule in self.rules if word in (rule.code, rule.name, rule.group)}
        if not exact and _PREFIX.fullmatch(word):
            exact = {rule.code for rule in self.rules if rule.code.startswith(word)}
        return frozenset(exact)

    def rule_of(self, word: str) -> Rule | None:
        """Return the one rule of a code or a name, or None."""
        return next((rule for rule in self.rules if word.strip() in (rule.code, rule.name)), None)

    def suggestion(self, word: str) -> str:
        """Return what the word may have meant, else what words there are."""
        words = [text for rule in self.rules for text in (rule.code, rule.name, rule.group)]
        close = difflib.get_close_matches(word.strip(), dict.fromkeys(words), n=1, cutoff=0.75)
        if close:
            return f"did you mean {close[0]}? "
        return ""

    def known(self) -> str:
        """Return all words on one line."""
        groups = ", ".join(dict.fromkeys(rule.group for rule in self.rules))
        rules = ", ".join(f"{rule.code} {rule.name}" for rule in self.rules)
        return f"groups {groups}; rules {rules}; ALL; or the beginning of a code"


def selected_codes(catalogue: Catalogue, select: Iterable[str], ignore: Iterable[str]) -> frozenset[str]:
    """Return the codes to report: those selected, or all, without those ignored.

    Args:
        catalogue: Rules to choose from.
        select: Words, each of which may be a comma-separated list.
        ignore: The same, taken away afterwards.

    Raises:
        AuditError: A word stands for no rule.
    """
    chosen = _codes(catalogue, "--select", select) or catalogue.codes_of("ALL")
    return chosen - _codes(catalogue, "--ignore", ignore)


def _codes(catalogue: Catalogue, option: str, words: Iterable[str]) -> frozenset[str]:
    codes: set[str] = set()
    for word in (part.strip() for text in words for part in text.split(",")):
        if not word:
            continue
        found = catalogue.codes_of(word)
        if not found:
            message = f"{option} {word}: no such rule"
            raise AuditError(message, f"{catalogue.suggestion(word)}mla-contract explain", expected=catalogue.known())
        codes |= found
    return frozenset(codes)
