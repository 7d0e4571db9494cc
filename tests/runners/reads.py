"""Prints, as JSON, what vLLM's own builders read of the device, over batches of its own runners."""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from tests.runners.interpreter import prepare


def main(builds: int) -> None:
    """Survey so many builds, each watched."""
    prepare()
    import numpy as np

    from mla_contract.testing.device_reads import DeviceMemory, watched_call
    from tests.runners.builders import KINDS
    from tests.runners.collector import arm
    from tests.runners.survey import Surveyor

    found: dict[str, list[str]] = {}
    watched: Counter[str] = Counter()

    def watch(kind: type) -> None:
        original = kind.build  # type: ignore[attr-defined]

        def build(self: Any, *args: Any, **kwargs: Any) -> Any:
            batch = kwargs["common_attn_metadata"] if "common_attn_metadata" in kwargs else args[1]
            memory = DeviceMemory()
            made = watched_call(lambda _: partial(original, self)(*args, **kwargs), batch, memory)
            watched[kind.__mro__[1].__name__] += 1
            for read in memory.reads:
                file, _, function = read.places[0].partition(" in ")
                found[f"{Path(file.rpartition(':')[0]).name} {function}"] = list(read.places)
            return made

        kind.build = build  # type: ignore[attr-defined]

    for kind in {one.backend.get_builder_cls(): None for one in KINDS.values()}:  # type: ignore[attr-defined]
        watch(kind)
    surveyor = Surveyor(arm().collector, np.random.default_rng(3))
    surveyor.run(builds, 3)
    print(json.dumps({"found": found, "watched": watched}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
