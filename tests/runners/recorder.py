"""Records the batches that vLLM's runners hand to builders: the numbers that do not depend on blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from mla_contract.plugin.hooks import install_hooks
from mla_contract.profiles.installed import installed_release
from tests.runners.builders import KINDS
from tests.runners.collector import Collector
from tests.runners.configuration import Setting
from tests.runners.survey import DRAFTS, RUNNERS, Cell, Surveyor
from tests.runners.traffic import Request

FUNCTIONS = {
    "v1": "vllm.v1.worker.gpu_model_runner.GPUModelRunner._build_attention_metadata",
    "v2": "vllm.v1.worker.gpu.attn_utils.build_attn_metadata",
}
"""What made the batches of each runner."""

BUILDERS = ("dense_single", "sparse", "dense_varlen", "indexer_flattened")
"""Builders whose thresholds and graphs differ: a batch depends on nothing else of its builder."""

RANKS = ((1, 1), (2, 1), (2, 4), (4, 1), (8, 1))
"""Ranks that share the cache, and consecutive tokens that a rank stores."""

MOST_SEQS = 10
"""Requests of a step at most: no captured size, so that a mixed graph may have fewer requests than tokens."""


class Keeper(Collector):
    """Keeps each batch as numbers, at once: a runner writes its buffers again."""

    def look(self, builder: Any, batch: Any, result: Any, *, capturing: bool = False) -> None:
        """Keep a batch; its record is not checked here."""
        self.builds.append(numbers_of(batch))  # type: ignore[arg-type]


def numbers_of(batch: Any) -> dict[str, Any]:
    """Return the numbers of a batch.

    Raises:
        ValueError: Device and host disagree on queries, which no recorded batch may.
    """
    offsets = batch.query_start_loc_cpu.tolist()
    if batch.query_start_loc.tolist() != offsets:
        raise ValueError(f"query_start_loc {batch.query_start_loc.tolist()} on the device, {offsets} on the host")
    lens, flags = batch.seq_lens.tolist(), batch.is_prefilling
    local, bounds = batch.dcp_local_seq_lens, batch.seq_lens_cpu_upper_bound.tolist()
    found = {
        "query_lens": np.diff(offsets).tolist(),
        "seq_lens": lens,
        "num_actual_tokens": batch.num_actual_tokens,
        "max_query_len": batch.max_query_len,
        "max_seq_len": batch.max_seq_len,
        "is_prefilling": None if flags is None else flags.int().tolist(),
        "num_slots": len(batch.slot_mapping),
    }
    if bounds != lens:
        found["seq_lens_cpu_upper_bound"] = bounds
    if local is not None:
        found["dcp_local_seq_lens"] = local.tolist()
    return found


class Recording(Surveyor):
    """Runs cells, and keeps the batches instead of checking them."""

    def __init__(self, rng: np.random.Generator) -> None:
        keeper = Keeper()
        install_hooks(keeper)
        super().__init__(keeper, rng)
        self.batches: list[dict[str, Any]] = []
        self._runner: Any = None

    def _jobs(self, runner: Any, cell: Cell) -> Iterator[tuple[str, Sequence[Request], Any]]:
        """Yield what is done with a runner, and remember it."""
        self._runner = runner
        yield from super()._jobs(runner, cell)

    def _attempt(self, cell: Cell, what: str, requests: Sequence[Request], act: Any) -> None:
        """Do one thing with a runner, and keep its batches; vLLM's failure is one here."""
        padding, setting = act() or what, cell.setting
        ordered_by = self._runner.reorder_batch_threshold if cell.runner == "v1" else self._runner.decode_query_len
        ranks = [setting.dcp_size, setting.dcp_rank, setting.interleave]
        of = {"runner": cell.runner, "padding": padding, "drafts": cell.drafts, "ordered_by": ordered_by, "dcp": ranks}
        self.batches += [of | numbers for numbers in self.collector.take()]  # type: ignore[operator]


def recorded(seed: int) -> dict[str, Any]:
    """Return the batches of every builder, runner and drafts, with one sharing of the cache for each; none twice.

    Args:
        seed: Of the requests.
    """
    recording = Recording(np.random.default_rng(seed))
    for index, (builder, runner, drafts) in enumerate(product(BUILDERS, RUNNERS, DRAFTS)):
        name, count, method = drafts
        # Each combination meets another sharing; 10 combinations of a builder meet each twice.
        size, interleave = RANKS[(index + index // len(DRAFTS)) % len(RANKS)]
        setting = KINDS[builder].setting(Setting(count, method, size, size - 1, interleave, max_num_seqs=MOST_SEQS))
        recording.cell(Cell(builder, runner, name, setting))
    if recording.survey.refused:
        raise ValueError(f"vLLM refuses a recorded engine: {recording.survey.refused}")
    texts = dict.fromkeys(json.dumps(batch) for batch in recording.batches)
    release = installed_release()
    head = {"release": release, "functions": FUNCTIONS, "max_num_seqs": MOST_SEQS}
    return head | {"batches": [json.loads(text) for text in texts]}


def as_text(record: dict[str, Any]) -> str:
    """Return the record as JSON with a batch on each line."""
    batches = ",\n".join(json.dumps(batch, separators=(",", ":")) for batch in record["batches"])
    head = json.dumps({name: value for name, value in record.items() if name != "batches"})
    return f'{head[:-1]}, "batches": [\n{batches}\n]}}\n'
