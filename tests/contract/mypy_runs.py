"""Runs of mypy for tests, and the markers that say in place what it must report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_REPORT = re.compile(r"^(?P<path>[^:\n]+):(?P<line>\d+): (?P<kind>error|note): (?P<text>.*)$")
_MARKER = re.compile(r"# (?P<kind>[EN]): (?P<text>.*?)(?=\s+# [EN]: |$)")


@dataclass(frozen=True)
class Report:
    """One line that mypy printed."""

    path: str
    line: int
    kind: str
    text: str


def run_mypy(
    files: Sequence[Path],
    *options: str,
    cwd: Path,
    sources: Sequence[Path] = (ROOT,),
    cache: Path | None = None,
) -> tuple[list[Report], str]:
    """Run mypy without any configuration file; return its reports and the whole output.

    Args:
        files: Files to check.
        options: Further options.
        cwd: Working directory, so that no configuration of the project is found.
        sources: Directories in which imports are looked up.
        cache: Cache directory; runs with the same sources may share it.
    """
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file=",
        "--no-error-summary",
        "--hide-error-context",
        "--no-pretty",
    ]
    command += [f"--cache-dir={cache or cwd / '.mypy_cache'}", *options, *map(str, files)]
    environment = os.environ | {"MYPYPATH": os.pathsep.join(map(str, sources))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    assert done.returncode in (0, 1), output
    matches = [match for line in output.splitlines() if (match := _REPORT.match(line))]
    return [Report(m["path"], int(m["line"]), m["kind"], m["text"]) for m in matches], output


def unmatched(source: Path, reports: Sequence[Report]) -> tuple[list[str], list[str]]:
    """Compare reports with the markers of a file.

    A line carries ``# E: part`` for each error and ``# N: part`` for each note; ``part`` is a part of the text.

    Returns:
        The reports that no marker expects, and the markers that no report meets.
    """
    left = [report for report in reports if Path(report.path).name == source.name]
    missing = []
    for number, line in enumerate(source.read_text().splitlines(), start=1):
        for marker in _MARKER.finditer(line):
            kind = "error" if marker["kind"] == "E" else "note"
            wanted = (r for r in left if (r.line, r.kind) == (number, kind) and marker["text"] in r.text)
            if (found := next(wanted, None)) is not None:
                left.remove(found)
            else:
                missing.append(f"{source.name}:{number}: {kind}: {marker['text']}")
    return [f"{report.path}:{report.line}: {report.kind}: {report.text}" for report in left], missing
