"""Pages of the clauses, written to docs/clauses from the clauses: ``python -m mla_contract.contract.docs``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mla_contract.contract.clauses.clause import Clause, Level
from mla_contract.contract.clauses.producers import deciders
from mla_contract.contract.clauses.registry import all_clauses
from mla_contract.contract.notes import notes_page
from mla_contract.contract.structure.faults import FAULTS, Fault

INDEX = "README.md"
NOTES_PAGE = "notes.md"

_MADE = "<!-- Written by python -m mla_contract.contract.docs from the clause; edit the clause. -->"
_READS = {
    Level.STRUCTURAL: "host integers, shapes, dtypes, strides and host copies; never synchronises",
    Level.VALUES: "elements of arrays, which waits for the device; refused during stream capture",
}


def clause_page(clause: Clause) -> str:
    """Return the page of a clause as Markdown."""
    return f"""{_MADE}

# {clause.id} {clause.name.replace("_", " ")}

{clause.sentence}

**Object.** `{clause.family}`.

**Needs.** {", ".join(need.text for need in clause.needs)}.

**Decided by.** {deciders(clause)}.

**Level.** {clause.level.value}: reads {_READS[clause.level]}.

**Incident.** {", ".join(clause.incident)}.

**Smallest example.** {clause.example}

**Help.** {clause.help}.
"""


def fault_page(fault: Fault) -> str:
    """Return the page of a structural fault as Markdown."""
    return f"""{_MADE}

# {fault.code} {fault.sentence}

{fault.why}

**Level.** structural: reads {_READS[Level.STRUCTURAL]}.

**Incident.** {fault.incident}.

**Smallest example.** {fault.example}

**Help.** {fault.help}.
"""


def index_page() -> str:
    """Return the page that lists every code."""
    lines = [_MADE, "", "# Clauses", "", "| code | says | level | object | incident |", "|---|---|---|---|---|"]
    lines += [
        f"| [{fault.code}]({fault.code}.md) | {fault.sentence} | structural | any record | {fault.incident} |"
        for fault in FAULTS
    ]
    lines += [
        f"| [{clause.id}]({clause.id}.md) | {clause.sentence} | {clause.level.value} | {clause.family} "
        f"| {', '.join(clause.incident)} |"
        for clause in all_clauses()
    ]
    lines += ["", f"What is inconsistent and harmless: [notes]({NOTES_PAGE})."]
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """Return the text of every file of the directory, by name."""
    found = {INDEX: index_page(), NOTES_PAGE: f"{_MADE}\n\n{notes_page()}"}
    found |= {f"{fault.code}.md": fault_page(fault) for fault in FAULTS}
    return found | {f"{clause.id}.md": clause_page(clause) for clause in all_clauses()}


def page_of(code: str) -> str | None:
    """Return the page of one code, or None if there is no such code."""
    return pages().get(f"{code}.md")


def stale_pages(directory: Path) -> list[str]:
    """Return the names of the files that are missing, differ, or belong to no clause."""
    wanted = pages()
    present = {path.name: path.read_text(encoding="utf-8") for path in directory.glob("*.md")}
    return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or compare them; return 1 when compared pages are stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=Path("docs/clauses"))
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is stale")
    options = parser.parse_args(arguments)
    stale = stale_pages(options.directory)
    if options.check:
        for name in stale:
            sys.stderr.write(f"{options.directory / name}: stale; run python -m mla_contract.contract.docs\n")
        return 1 if stale else 0
    options.directory.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for name in stale:
        path = options.directory / name
        if name in wanted:
            path.write_text(wanted[name], encoding="utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
