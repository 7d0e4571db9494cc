"""The table of planted faults as Markdown: what was planted, which codes report it, and in which level."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from mla_contract.contract.clauses.clause import Level
from tests.lab.faults import PlantedFault, detect, planted_faults
from tests.lab.known_misses import KNOWN_MISSES

_MADE = "<!-- Written by python -m scripts.make_fault_table from tests/lab; edit the faults there. -->"


@dataclass
class KindRow:
    """All faults of one kind."""

    planted: int = 0
    caught: dict[Level, int] = field(default_factory=lambda: dict.fromkeys(Level, 0))
    in_record: int = 0
    codes: set[str] = field(default_factory=set)


@dataclass
class Score:
    """What became of every planted fault.

    Attributes:
        kinds: A row for each kind.
        misses: Faults that no level reports under an expected code at the right place.
    """

    kinds: dict[str, KindRow]
    misses: list[PlantedFault]

    @property
    def planted(self) -> int:
        """Faults in all."""
        return sum(row.planted for row in self.kinds.values())

    def caught(self, level: Level) -> int:
        """Return the faults that a level is the first to report."""
        return sum(row.caught[level] for row in self.kinds.values())


def score_faults() -> Score:
    """Plant every fault and say what became of it; takes some seconds."""
    kinds: dict[str, KindRow] = defaultdict(KindRow)
    misses = []
    for fault in planted_faults():
        row, found = kinds[fault.kind], detect(fault)
        row.planted += 1
        if found.level is None:
            misses.append(fault)
            continue
        row.caught[found.level] += 1
        row.in_record += not found.exact
        row.codes.add(found.code)
    return Score(dict(kinds), misses)


def fault_page() -> str:
    """Return the page of the mutation score."""
    score = score_faults()
    structural, values = score.caught(Level.STRUCTURAL), score.caught(Level.VALUES)
    lines = [
        _MADE,
        "",
        "# Planted faults",
        "",
        f"{score.planted} distinct faults (a kind, a class and a field) are planted in legal metadata, one at a time.",
        f"{structural} are reported by the structural level, {values} more by the values level, {len(score.misses)} by",
        "none. A fault counts as reported only under a code that was expected of it, at its own field or at one that",
        "contradicts it; *in record* counts reports that name the record that holds the field.",
        "",
        "| kind | planted | structural | values | missed | in record | reported by |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for kind, row in sorted(score.kinds.items(), key=lambda item: item[0].lower()):
        first, second = row.caught[Level.STRUCTURAL], row.caught[Level.VALUES]
        codes = ", ".join(sorted(row.codes)) or "none"
        missed = row.planted - first - second
        lines.append(f"| {kind} | {row.planted} | {first} | {second} | {missed} | {row.in_record} | {codes} |")
    lines += ["", "## Missed", ""]
    if not score.misses:
        lines.append("None.")
    else:
        lines += ["| kind | planted in | field | why |", "|---|---|---|---|"]
        lines += [
            f"| {fault.kind} | {fault.base} | `{fault.path}` | {KNOWN_MISSES.get(fault.key, 'not known')} |"
            for fault in score.misses
        ]
    return "\n".join(lines) + "\n"
