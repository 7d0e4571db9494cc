"""Build with vLLM's builders on batches of vLLM's runners, and print the alarms: `python -m scripts.survey_runners`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.runners.interpreter import missing, prepare

NOT_DONE = 2


def main() -> int:
    """Run the survey; return 1 if there is any alarm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--builds", type=int, default=2000, help="how many builds at least")
    parser.add_argument("--seed", type=int, default=0, help="of the random batches")
    parser.add_argument("--tree", type=Path, help="folder with the package vllm of another release, unpacked")
    parser.add_argument("--json", type=Path, help="write the result there as well, with planted faults")
    chosen = parser.parse_args()
    if chosen.tree is not None:
        if not (chosen.tree / "vllm" / "__init__.py").is_file():
            parser.error(f"--tree {chosen.tree}: expected a folder that holds vllm/__init__.py")
        sys.path.insert(0, str(chosen.tree))
    reason = missing()
    if reason is not None:
        print(f"the runners cannot be driven here: {reason}", file=sys.stderr)
        return NOT_DONE
    prepare()
    import numpy as np

    from tests.runners.collector import arm
    from tests.runners.survey import Surveyor

    armed = arm()
    surveyor = Surveyor(armed.collector, np.random.default_rng(chosen.seed), plant=chosen.json is not None)
    started = time.perf_counter()
    survey = surveyor.run(chosen.builds, chosen.seed)
    print(survey.table())
    print(f"\n{survey.builds} builds in {time.perf_counter() - started:.0f} s, alarms: {survey.alarms.total()}")
    for text, times in survey.by_code().items():
        print(f"{times:>8}  {text}")
    for (code, where), (_, text) in sorted(survey.smallest.items()):
        print(f"\n{code} {where}\n  {text}")
    print("\ncould not be run:", *survey.not_run(), sep="\n  ")
    if chosen.json is not None:
        result = {
            "builds": survey.builds,
            "builders": sorted({row.builder for row in survey.rows}),
            "alarms": survey.by_code(),
            "planted": surveyor.told,
            "table": survey.table(),
        }
        chosen.json.write_text(json.dumps(result), "utf-8")
    return 1 if survey.alarms else 0


if __name__ == "__main__":
    sys.exit(main())
