"""The main jobs, with an explanation of what they print; run by `make demo`: audit, suite, planted fault, engine."""

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


CHECK = """\
The audit reads sources. What a builder returns is checked while it runs: against every clause of the contract, on every
batch of a corpus taken from vLLM's own tests. These are the backends of this package:
"""

PLANTED = """\
And this is what a report looks like. A decode record keeps its lengths in a persistent buffer; the step before had four
requests, this one has two and two of padding, and the builder forgot to clear the tail:
"""

SMOKE = """\
At last the real engine: a tiny random DeepSeek-V3.2 on vLLM's CPU build, through the ROCm sparse backend of this
package, with every build of its metadata checked. Its tokens must be those of transformers' own model:
"""


def command(name: str, *arguments: str) -> int:
    """Run a command of mla-contract in a process of its own and return its exit status."""
    print(f"$ mla-contract {' '.join([name, *arguments])}", flush=True)
    return subprocess.run(
        [sys.executable, "-m", "mla_contract.cli.main", name, *arguments], cwd=ROOT, check=False
    ).returncode


def audit(*arguments: str) -> int:
    """Run the audit and return its exit status."""
    return command("audit", *arguments)


def show_check() -> int:
    """Run the conformance suite on the package's backends; return 0 when it was shown."""
    print(CHECK)
    return 0 if command("check") in (CLEAN, FINDINGS) else 1


def show_planted_fault() -> int:
    """Plant a stale tail in legal metadata, print the report, and have the clause explained."""
    from mla_contract.contract.clauses.clause import Level
    from tests.lab.faults import check_subject, planted_faults

    print(PLANTED)
    fault = next(
        fault for fault in planted_faults() if fault.kind == "stale tail" and fault.path.endswith("decode.seq_lens")
    )
    accepted = not check_subject(fault.subject(), Level.VALUES)
    found = check_subject(fault.planted(), Level.VALUES)
    for violation in found:
        print(violation.render())
    print()
    codes = {violation.code for violation in found}
    shown = accepted and codes == set(fault.codes) and command("explain", fault.codes[0]) == 0
    return 0 if shown else 1


def show_smoke() -> int:
    """Run a sparse model through the engine; return 0 when it is as it must be."""
    print()
    print(SMOKE)
    return 0 if command("smoke") == CLEAN else 1


def main() -> int:
    """Show the audit, the conformance suite, a planted fault and the engine; return 0 when all were shown."""
    return max(show_audit(), show_check(), show_planted_fault(), show_smoke())


def show_audit() -> int:
    """Audit the release, or the example tree without a network; return 0 when the findings were shown."""
    print(BEFORE)
    status = audit("--release", RELEASE)
    if status == NOT_DONE:
        print()
        print(OFFLINE)
        shown = EXAMPLE_TREE.relative_to(ROOT)
        status = audit(str(shown))
    print()
    if status == FINDINGS:
        print(AFTER)
        return 0
    print(f"The audit ended with status {status}, and findings (status {FINDINGS}) were expected.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
