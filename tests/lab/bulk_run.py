"""Bulk runs: how many random legal batches are checked, and what is reported of them. Anything at all is a fault."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mla_contract.contract.clauses.clause import Level
from mla_contract.runtime.check import Known, check_metadata
from mla_contract.testing.random_batches import Chooser, Runner, draw_legal


@dataclass
class Survey:
    """What a bulk run saw.

    Attributes:
        batches: Batches by kind of record.
        codes: Violations by code.
        examples: The first few violations, with the seed that draws their batch again.
    """

    batches: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)


def survey_legal(count: int, *, seed: int = 0, first: int = 0, progress: int = 0) -> Survey:
    """Draw and check random legal batches in both levels.

    Args:
        count: How many.
        seed: Seed of the run; batch i is drawn from ``[seed, i]`` and can be drawn again alone.
        first: The first i.
        progress: Print a line after this many batches; 0 prints none.

    Sync: reads the records' arrays, which are on the host.
    """
    found = Survey()
    for index in range(first, first + count):
        runner = tuple(Runner)[index % len(Runner)]
        draw = draw_legal(Chooser(np.random.default_rng([seed, index])), runner=runner)
        batch, metadata = draw.build()
        found.batches[draw.setup.kind.value] += 1
        known = Known(facts=draw.setup.facts(), declaration=draw.setup.declaration)
        for violation in check_metadata(metadata, batch=batch, level=Level.VALUES, **known):
            found.codes[violation.code] += 1
            if len(found.examples) < 5:
                found.examples.append(f"seed [{seed}, {index}]\n{violation.render()}")
        if progress and (index + 1) % progress == 0:
            print(f"{index + 1} batches, {found.codes.total()} violations", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a survey and print it; return 1 when anything is reported."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    found = survey_legal(options.count, seed=options.seed, progress=10_000)
    print("\n".join(found.examples))
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.batches.items()))
    print(f"{found.batches.total()} batches ({kinds}): {found.codes.total()} violations {dict(found.codes)}")
    return 1 if found.codes else 0


if __name__ == "__main__":
    sys.exit(main())
