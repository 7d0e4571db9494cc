"""Writing the pages of the rules to docs/rules, from the rules themselves: ``python -m mla_contract.audit.docs``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mla_contract.audit.rule import Rule

INDEX = "README.md"

_MADE = "<!-- Written by python -m mla_contract.audit.docs from the rule; edit the rule. -->"


def rule_page(rule: Rule) -> str:
    """Return the page of a rule as Markdown."""
    page = rule.page
    return f"""{_MADE}

# {rule.code} {rule.name}

Group `{rule.group}`, severity {rule.severity.value}.

**What.** {page.what}

**Why.** {page.why}

**Incident.** {page.incident}

Reported:

{_fenced(page.bad)}

Corrected:

{_fenced(page.good)}
{_allow_part(rule)}"""


def index_page(rules: Sequence[Rule]) -> str:
    """Return the page that lists all rules."""
    lines = [_MADE, "", "# Rules", "", "| code | rule | group | severity |", "|---|---|---|---|"]
    lines += [
        f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.group} | {rule.severity.value} |" for rule in rules
    ]
    return "\n".join(lines) + "\n"


def rule_pages(rules: Sequence[Rule]) -> dict[str, str]:
    """Return the text of every file of the directory, by name."""
    return {INDEX: index_page(rules), **{f"{rule.code}.md": rule_page(rule) for rule in rules}}


def stale_pages(directory: Path, pages: dict[str, str]) -> list[str]:
    """Return the names of the files that are missing, differ, or belong to no rule."""
    present = {path.name: path.read_text(encoding="utf-8") for path in directory.glob("*.md")}
    return sorted(name for name in pages.keys() | present.keys() if pages.get(name) != present.get(name))


def write_pages(directory: Path, pages: dict[str, str]) -> list[str]:
    """Write the files that differ, remove those of no rule, and return the names of both."""
    directory.mkdir(parents=True, exist_ok=True)
    changed = stale_pages(directory, pages)
    for name in changed:
        if name in pages:
            (directory / name).write_text(pages[name], encoding="utf-8")
        else:
            (directory / name).unlink()
    return changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or compare the pages; return the exit code."""
    from mla_contract.audit.run import catalogue

    parser = argparse.ArgumentParser(prog="python -m mla_contract.audit.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is not up to date")
    parser.add_argument("--directory", type=Path, default=Path("docs/rules"), help="directory of the pages")
    options = parser.parse_args(arguments)
    pages = rule_pages(catalogue().rules)
    if options.check:
        changed, word = stale_pages(options.directory, pages), "not up to date"
    else:
        changed, word = write_pages(options.directory, pages), "written"
    for name in changed:
        print(f"{options.directory / name}: {word}")
    return 1 if changed and options.check else 0


def _fenced(source: str) -> str:
    return f"```python\n{source.strip()}\n```"


def _allow_part(rule: Rule) -> str:
    if rule.group == "tool":
        return ""
    return f"\nTo keep one, say why on its line: `# mla: allow {rule.name} -- reason`.\n"


if __name__ == "__main__":
    sys.exit(main())
