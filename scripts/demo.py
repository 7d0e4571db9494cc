"""The main job on a real release, with an explanation of what it printed; run by `make demo`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RELEASE = "0.26.0"
ROOT = Path(__file__).resolve().parent.parent
EXAMPLE_TREE = ROOT / "examples" / "tree"

CLEAN, FINDINGS, NOT_DONE = 0, 1, 2

BEFORE = f"""\
vLLM {RELEASE} shipped two attention backends that stop at start-up: the shared MLA layer had begun to read fields that
their metadata classes do not declare. mypy, as vLLM runs it, reports success on those sources.

The audit reads the sources of that release (downloaded as a wheel, unpacked, never imported) and names each read that
finds no field:
"""

AFTER = """\
How to read this
  path:line: error    the place in the shared layer that reads the field
  class and field     the backend whose metadata does not declare it
  error / warning     an error is reached on every step of that backend; a warning states the condition that it needs
  [CODE]              the rule; `mla-contract explain CODE` says what it means and shows a good and a bad example
  exit status 1       there are findings; 0 means none, 2 means that the tool could not do its work

Next: `mla-contract audit PATH` on your own checkout, `mla-contract seam module:Class` for a file that mypy can check.
"""

OFFLINE = """\
The release could not be fetched (its message stands above), so this is the example tree that comes with the project, a
small one with the same fault.
"""


def audit(*arguments: str) -> int:
    """Run the audit in a process of its own and return its exit status."""
    command = [sys.executable, "-m", "mla_contract.cli", "audit", *arguments]
    sys.stdout.flush()
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main() -> int:
    """Audit the release, or the example tree without a network; return 0 when the findings were shown."""
    print(BEFORE)
    print(f"$ mla-contract audit --release {RELEASE}")
    status = audit("--release", RELEASE)
    if status == NOT_DONE:
        print()
        print(OFFLINE)
        shown = EXAMPLE_TREE.relative_to(ROOT)
        print(f"$ mla-contract audit {shown}")
        status = audit(str(shown))
    print()
    if status == FINDINGS:
        print(AFTER)
        return 0
    print(f"The audit ended with status {status}, and findings (status {FINDINGS}) were expected.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
