"""Our plan and our builders beside vLLM's own builders, on every batch that its runners hand over.

A process of its own prints one JSON object: `python -m tests.runners.equality COUNT SEED [PLANTED]`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tests.runners.interpreter import prepare

prepare()

import torch  # noqa: E402

from mla_contract.adapters.batch import BatchShape  # noqa: E402
from mla_contract.adapters.context_parallel import ContextParallel  # noqa: E402
from mla_contract.adapters.plan import BatchPlan, PlanConfig, plan_batch  # noqa: E402
from mla_contract.backends.cuda_sparse.builder import CudaSparseBuilder  # noqa: E402
from mla_contract.backends.rocm_sparse.builder import RocmSparseBuilder  # noqa: E402
from mla_contract.errors import InvalidContract  # noqa: E402
from mla_contract.plugin.hooks import install_hooks  # noqa: E402
from mla_contract.testing.aiter_double import RELEASES, install  # noqa: E402
from tests.backends.sparse.steps import SMALL  # noqa: E402
from tests.runners.builders import KINDS  # noqa: E402
from tests.runners.collector import Collector  # noqa: E402
from tests.runners.survey import CHIP, Cell, Surveyor, cells  # noqa: E402

INDEXERS = ("indexer_native", "indexer_flattened", "indexer_varlen")
ATTENTION = ("dense_single", "dense_uniform", "dense_varlen", "sparse", "sparse_uniform", "rocm_sparse")
WHOLE = ("sparse", "rocm_sparse", "indexer_flattened", "indexer_varlen")
"""vLLM's builders beside which ours stand: their decodes are of any lengths up to the drafts and one, as ours are."""
PAGED = ("qo_indptr", "paged_kv_indptr", "paged_kv_last_page_len")
ROWS = (*PAGED, "req_id_per_token")
CHUNK = ("cu_seqlen_ks", "cu_seqlen_ke", "cu_seq_lens", "total_seq_lens", "token_start", "token_end", "num_reqs")
LIMITS: dict[str, Any] = {
    "max_num_seqs": 12,
    "max_num_batched_tokens": 128,
    "max_model_len": 1024,
    "max_capture_size": 32,
    "block_size": 64,
    "topk_tokens": 64,
    "indexer_rows": 1024 * 40,
}
"""What the harness's engines take."""
COUNTS = ("num_decodes", "num_prefills", "num_decode_tokens")


class Comparer(Collector):
    """Compares each build at once, as a runner writes its buffers again.

    Attributes:
        cell: What is run.
        planted: By how much our thresholds are wrong.
        seen: What was compared, by name.
        faults: What was refused or differs.
    """

    def __init__(self, planted: int) -> None:
        super().__init__()
        self.cell: Cell | None = None
        self.planted = planted
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []
        self._ours: dict[int, tuple[Any, Any]] = {}

    def look(self, builder: Any, batch: Any, result: Any, *, capturing: bool = False) -> None:
        """Compare a build."""
        cell = self.cell
        assert cell is not None
        self.seen["batches"] += 1
        self.seen[f"{cell.runner} padded"] += int(batch.query_start_loc_cpu[-1]) < batch.num_actual_tokens
        self.seen["device differs"] += not torch.equal(batch.seq_lens, batch.seq_lens_cpu_upper_bound)
        name = f"{cell.builder} {cell.runner} {cell.drafts} dcp={cell.setting.dcp_size}"
        try:
            found = [*self._plan(builder, batch, result), *self._whole(batch, result)]
        except InvalidContract as error:
            found = [f"refused: {error}"]
        text = f"q={np.diff(batch.query_start_loc_cpu).tolist()} s={batch.seq_lens.tolist()}"
        self.faults += [f"{name}: {fault}: {text} tokens={batch.num_actual_tokens}" for fault in found]

    def _plan(self, builder: Any, batch: Any, record: Any) -> Iterator[str]:
        """Yield differences between the plan and a record of any of vLLM's builders, with its ranks."""
        assert self.cell is not None
        setting, kind = self.cell.setting, self.cell.builder
        if kind not in (*INDEXERS, *ATTENTION):
            return
        indexer = kind in INDEXERS
        uniform = kind in ("indexer_native", "sparse_uniform", "dense_uniform")
        native = kind == "indexer_native"
        threshold = builder.decode_threshold if indexer else builder.reorder_batch_threshold
        ranks = ContextParallel(setting.dcp_size, setting.dcp_rank, setting.interleave)
        config = PlanConfig(
            block_size=setting.block_size,
            decode_threshold=threshold + self.planted,
            require_uniform=uniform,
            indexer_states=setting.max_model_len * 40 if indexer else None,
            flatten_decodes=not native,
            parallel=ranks,
        )
        plan = plan_batch(_shape(batch), config)
        self.seen["plans"] += 1
        names = (*COUNTS, "num_prefill_tokens") if indexer else COUNTS
        for count in names:
            if getattr(plan.split, count) != getattr(record, count):
                yield f"{count} {getattr(record, count)}, ours {getattr(plan.split, count)}"
                return
        if indexer and record.decode is not None and torch.equal(batch.seq_lens, batch.seq_lens_cpu_upper_bound):
            yield from self._rows(plan, record.decode)

    def _rows(self, plan: BatchPlan, theirs: Any) -> Iterator[str]:
        """Yield differences of decode rows; for a width without a kernel vLLM's native layout is flattened."""
        ours = plan.decode
        assert ours is not None
        if len(theirs.seq_lens) != ours.num_rows and not ours.flattened:
            self.seen["other layout"] += 1
            return
        self.seen["decode rows"] += 1
        self.seen["lengths over ranks"] += ours.global_seq_lens is not None
        for field in ("seq_lens", "global_seq_lens"):
            yield from _unequal(f"decode {field}", getattr(theirs, field), getattr(ours, field))
        # On padding rows one of vLLM's layouts has a token, and the others have none.
        live = ours.row_requests >= 0
        yield from _unequal("decode lens of live rows", theirs.decode_lens.numpy() * live, ours.decode_lens * live)

    def _whole(self, batch: Any, theirs: Any) -> Iterator[str]:
        """Yield differences between our builders' records and vLLM's, without ranks."""
        assert self.cell is not None
        setting, kind = self.cell.setting, self.cell.builder
        if kind not in WHOLE or setting.dcp_size > 1:
            return
        for ours in self._builders(setting.drafts + 1):
            attention, indexer = ours.build_pair(batch)
            self.seen["records of ours"] += 1
            if kind in INDEXERS:
                yield from self._indexer(indexer, theirs)
                continue
            names = [*COUNTS, "req_id_per_token", "slot_mapping", "block_table", "seq_lens", "query_start_loc"]
            names += PAGED if kind == "rocm_sparse" and isinstance(ours, RocmSparseBuilder) else ()
            # vLLM's tables have no rows for padding, or for prefills that attend densely; ours have them behind.
            live = int(batch.query_start_loc_cpu[-1])
            allowed = (batch.num_actual_tokens, live, theirs.num_decode_tokens)
            for name in names:
                wanted, got = getattr(theirs, name), getattr(attention, name)
                if name in ROWS:
                    if len(wanted) - name.endswith("indptr") not in allowed:
                        yield f"{name} has {len(wanted)} rows, not one of {allowed}"
                    got = got[: len(wanted)]
                yield from _unequal(name, wanted, got)

    def _indexer(self, ours: Any, theirs: Any) -> Iterator[str]:
        """Yield differences between the indexer's records."""
        for name in (*COUNTS, "num_prefill_tokens", "slot_mapping", "seq_lens"):
            yield from _unequal(name, getattr(theirs, name), getattr(ours, name))
        if theirs.decode is not None and ours.decode is not None:
            yield from _unequal("decode seq_lens", theirs.decode.seq_lens, ours.decode.seq_lens)
            live = (ours.decode.seq_lens > 0).numpy()
            lens = [one.decode.decode_lens.numpy() * live for one in (theirs, ours)]
            yield from _unequal("decode lens of live rows", *lens)
            yield from _unequal("requires_padding", theirs.decode.requires_padding, ours.decode.requires_padding)
        chunks = [[] if one.prefill is None else one.prefill.chunks for one in (theirs, ours)]
        if len(chunks[0]) != len(chunks[1]):
            yield f"{len(chunks[0])} chunks, ours {len(chunks[1])}"
            return
        for wanted, got in zip(*chunks, strict=True):
            self.seen["chunks"] += 1
            for name in CHUNK:
                yield from _unequal(f"chunk {name}", getattr(wanted, name), getattr(got, name))

    def _builders(self, next_n: int) -> tuple[Any, Any]:
        """Return both of our builders for such decodes, made once: rows of a step before may show."""
        if next_n not in self._ours:
            config = replace(SMALL, **LIMITS, next_n=next_n + self.planted)
            self._ours[next_n] = RocmSparseBuilder(config), CudaSparseBuilder(config)
        return self._ours[next_n]


class Comparison(Surveyor):
    """Runs cells, and tells the comparer which one."""

    def cell(self, cell: Cell) -> None:
        """Run one cell."""
        assert isinstance(self.collector, Comparer)
        self.collector.cell = cell
        super().cell(cell)


def _shape(batch: Any) -> BatchShape:
    """Return the host's lengths of a batch."""
    flags = batch.is_prefilling
    return BatchShape.from_start_loc(
        batch.query_start_loc_cpu.numpy(),
        batch.seq_lens_cpu_upper_bound.numpy(),
        num_actual_tokens=batch.num_actual_tokens,
        max_query_len=batch.max_query_len,
        is_prefilling=None if flags is None else flags.numpy(),
    )


def _unequal(name: str, theirs: Any, ours: Any) -> Iterator[str]:
    """Yield a line if two values differ in shape or in an element; a column of one length is as good as none."""
    if theirs is None or ours is None:
        if theirs is not ours:
            yield f"{name} {theirs}, ours {ours}"
        return
    wanted, got = np.asarray(theirs), np.asarray(ours)
    if wanted.ndim == got.ndim + 1 and wanted.shape[-1] == 1:
        wanted = wanted[..., 0]
    if got.ndim == wanted.ndim + 1 and got.shape[-1] == 1:
        got = got[..., 0]
    if wanted.shape != got.shape or not (wanted == got).all():
        yield f"{name} {wanted.tolist()}, ours {got.tolist()}"


def main(count: int, seed: int, planted: int) -> None:
    """Compare at least ``count`` batches of the builders that are compared whole or by their plan."""
    comparer = Comparer(planted)
    install_hooks(comparer)
    comparison = Comparison(comparer, np.random.default_rng(seed))
    with install(RELEASES[-1], CHIP):
        while comparer.seen["batches"] < count:
            for cell in cells(seed):
                if KINDS[cell.builder].is_indexer or cell.builder in ATTENTION:
                    comparison.cell(cell)
                if comparer.seen["batches"] >= count:
                    break
            seed += 1
    failed = [f"{times} x {text}" for text, times in comparison.survey.failed.items()]
    json.dump({**comparer.seen, "faults": comparer.faults[:100], "failed": failed}, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else 0)
