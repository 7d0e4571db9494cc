"""Compares our planners with the installed engine's, in a process of its own; prints one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import numpy as np

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.context_parallel import ContextParallel
from mla_contract.adapters.context_rule import ContextRule
from mla_contract.adapters.indexer_chunks import IndexerRule
from mla_contract.adapters.split import SplitRule
from tests.adapters.comparison import compare
from tests.adapters.draws import Draw, draw
from tests.adapters.peers import Peer, imported_peer
from tests.adapters.planted import planted
from tests.adapters.scenarios import BATCHES, CONTEXTS


def scenarios() -> Iterator[Draw]:
    """Yield every batch and every context of the table, under several rules."""
    context, indexer = ContextRule(1024, 16), IndexerRule(40_000, 4_000_000)
    for query_lens, seq_lens in BATCHES.values():
        shape = BatchShape.of(query_lens, seq_lens)
        for threshold in (1, 2, 4, 8):
            for uniform in (False, True):
                yield Draw(shape, SplitRule(threshold, uniform, release="0.32"), context, indexer)
    for case in CONTEXTS.values():
        shape = BatchShape.of(case.query_lens, np.add(case.query_lens, case.context_lens))
        rule = ContextRule(case.workspace_rows, case.block_size, ContextParallel(case.size, 0, case.interleave))
        if rule.workspace_rows >= rule.alignment:
            yield Draw(shape, SplitRule(release="0.32"), rule, indexer)


def main(count: int, seed: int, peer: Peer) -> None:
    """Compare the table and ``count`` random batches; print how many, the decisions met and the first differences."""
    rng = np.random.default_rng(seed)
    table = list(scenarios())
    found: list[str] = []
    exempt: set[str] = set()
    for number in range(len(table) + count):
        one = table[number] if number < len(table) else draw(rng, peer.release)
        findings = compare(one, peer)
        found += [f"batch {number}: {line}" for line in findings.differences]
        exempt |= findings.exempt
    report = {"release": peer.release, "scenarios": len(table), "compared": count}
    json.dump({**report, "exempt": sorted(exempt), "differences": found[:5000]}, sys.stdout)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    engine = imported_peer()
    main(int(sys.argv[1]), int(sys.argv[2]), planted(engine) if sys.argv[3:] == ["planted"] else engine)
