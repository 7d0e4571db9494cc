"""Write what vLLM's runners hand to builders: `python -m scripts.record_runner_batches`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.runners.interpreter import missing, prepare

TARGET = Path(__file__).parents[1] / "mla_contract" / "testing" / "runner_batches.json"
SEED = 12
NOT_DONE = 2


def main() -> int:
    """Write the record; return 2 where the runners cannot be driven."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=TARGET, help="where to write")
    chosen = parser.parse_args()
    reason = missing()
    if reason is not None:
        print(f"the runners cannot be driven here: {reason}", file=sys.stderr)
        return NOT_DONE
    prepare()
    from tests.runners.recorder import as_text, recorded

    record = recorded(SEED)
    chosen.target.write_text(as_text(record), "utf-8")
    print(f"{len(record['batches'])} batches of vLLM {record['release']} in {chosen.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
