"""Write docs/faults.md: every planted fault by kind, and which clause and level reports it.

Usage: python -m scripts.make_fault_table [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.lab.fault_table import fault_page

TARGET = Path(__file__).resolve().parent.parent / "docs" / "faults.md"


def main(arguments: list[str]) -> int:
    """Write the page, or compare it; return 1 when the compared page is stale."""
    page = fault_page()
    if "--check" in arguments:
        return 0 if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == page else 1
    TARGET.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
