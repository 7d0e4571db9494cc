"""Time validation beside vLLM 0.32's build of the same batch, after checking that faults are found and none invented.

Run from the root: ``python -m benchmarks.bench_validate``. All rows run in one process, in turn, on one thread, and its
CPU time is measured, so that other processes disturb little; a ratio is validation time over build time. Without vLLM
the reference rows are left out, with the reason.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from mla_contract import SparseMLAMetadata
from mla_contract.contract.clauses.clause import Level
from mla_contract.contract.step.facts import Facts
from mla_contract.runtime import check_metadata, validated

BLOCK, TOPK, CONTEXT_ROWS = 64, 2048, 65_536
MAX_MODEL_LEN = 163_840
"""Tokens that a row of the block table has room for, whatever the requests' lengths."""
FACTS = Facts(
    kernel_block_size=BLOCK,
    decode_threshold=1,
    short_extends_are_decodes=True,
    capturing=False,
    dummy=False,
    context_rows=CONTEXT_ROWS,
)


class Times(NamedTuple):
    """Median and quartiles, in microseconds."""

    low_us: float
    median_us: float
    high_us: float


def vllm_parts() -> tuple[Any, str]:
    """Return vLLM's modules and version, or (None, why there is none)."""
    try:
        import vllm
        from vllm.model_executor.layers.attention import sparse_mla_attention
        from vllm.v1.attention.backend import CommonAttentionMetadata
        from vllm.v1.attention.ops import metadata as operations
    except ImportError as error:
        return None, f"vLLM cannot be imported: {error}"
    return (CommonAttentionMetadata, sparse_mla_attention, operations), vllm.__version__


def lengths(num_reqs: int, num_decodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return query and sequence lengths: decodes of one token, then prefills of up to 63 with contexts up to 4096."""
    rng = np.random.default_rng(num_reqs)
    queries = np.concatenate([np.ones(num_decodes, np.int64), rng.integers(2, 64, num_reqs - num_decodes)])
    return queries, queries + rng.integers(1, 4096, num_reqs)


def batch_fields(queries: np.ndarray, lens: np.ndarray) -> dict[str, Any]:
    """Return the fields of a common batch; slots follow the block table, and padding requests have none."""
    start_loc = np.concatenate([[0], np.cumsum(queries)])
    columns = -(-int(lens.max()) // BLOCK)
    table = np.zeros((len(lens), MAX_MODEL_LEN // BLOCK), np.int64)
    table[:, :columns] = 1 + np.arange(len(lens) * columns).reshape(len(lens), columns)
    owner = np.repeat(np.arange(len(lens)), queries)
    position = lens[owner] - queries[owner] + np.arange(len(owner)) - start_loc[owner]
    slots = np.where(lens[owner] > 0, table[owner, position // BLOCK] * BLOCK + position % BLOCK, -1)
    table[lens == 0] = 0
    return {
        "query_start_loc": torch.tensor(start_loc, dtype=torch.int32),
        "query_start_loc_cpu": torch.tensor(start_loc, dtype=torch.int32),
        "seq_lens": torch.tensor(lens, dtype=torch.int32),
        "num_reqs": len(lens),
        "num_actual_tokens": int(start_loc[-1]),
        "max_query_len": int(queries.max()),
        "max_seq_len": int(lens.max()),
        "block_table_tensor": torch.tensor(table, dtype=torch.int32),
        "slot_mapping": torch.tensor(slots),
        "positions": torch.tensor(position),
        "seq_lens_cpu_upper_bound": torch.tensor(lens, dtype=torch.int32),
    }


class _PrefillBackend:
    """A prefill backend that prepares nothing, so that only the builder is timed."""

    def prepare_metadata(self, prefill: object) -> None:
        """Do nothing."""


class _Configuration:
    """What ``build`` reads of the engine's configuration."""

    class attention_config:
        hisparse_config = None
        sparse_mla_force_mqa = False

    class model_config:
        dtype = torch.bfloat16


class _Spec:
    """What ``build`` reads of the cache specification."""

    block_size = BLOCK


def vllm_builder(parts: Any, batch: Any, *, dense_prefill: bool) -> Callable[[], Any]:
    """Return vLLM's own ``build`` of a batch, on a builder whose buffers are made beforehand.

    The kernel that maps tokens to requests has no body for a CPU; it gets one, as vLLM provides for.
    """
    _, sparse, operations = parts

    def mapped(query_start_loc: torch.Tensor, out: torch.Tensor, num_mapped: int, num_tokens: int) -> torch.Tensor:
        requests = torch.arange(len(query_start_loc) - 1, dtype=torch.int32)
        out[:num_mapped] = torch.repeat_interleave(requests, torch.diff(query_start_loc), output_size=num_mapped)
        return out[:num_tokens]

    operations.compute_token_to_req_indices = mapped
    builder = object.__new__(sparse.SparseMLACommonMetadataBuilder)
    queries = torch.diff(batch.query_start_loc_cpu)
    builder.__dict__.update(
        metadata_cls=sparse.SparseMLACommonMetadata,
        vllm_config=_Configuration,
        model_config=_Configuration.model_config,
        kv_cache_spec=_Spec,
        device=torch.device("cpu"),
        topk_tokens=TOPK,
        reorder_batch_threshold=1,
        use_pcp=False,
        dcp_world_size=1,
        dcp_local_block_size=1,
        dcp_virtual_block_size=1,
        dcp_manager=None,
        cp_kv_cache_interleave_size=1,
        chunked_prefill_workspace_size=CONTEXT_ROWS,
        chunked_prefill_workspace=torch.empty(CONTEXT_ROWS, 8),
        topk_mask_workspace=None,
        req_id_per_token_buffer=torch.empty(int(queries.sum()), dtype=torch.int32),
        _context_lens_cpu=torch.empty(len(queries), dtype=torch.int32),
        _prefill_backend=_PrefillBackend() if dense_prefill else None,
    )

    def build() -> Any:
        batch._token_to_req_indices_cache = None
        return builder.build(0, batch)

    return build


def check_correct(metadata: Any, batch: Any) -> None:
    """Raise unless the valid record passes both levels, planted faults are found, and off is the identity."""
    for level in Level:
        found = check_metadata(metadata, SparseMLAMetadata, batch=batch, facts=FACTS, level=level)
        if found:
            raise SystemExit("\n".join(["a valid record is reported", *(violation.render() for violation in found)]))
    for name, value in {
        "num_decodes": metadata.num_decodes + 1,
        "num_decode_tokens": None,
        "slot_mapping": metadata.slot_mapping.int(),
        "req_id_per_token": metadata.req_id_per_token[1:],
        "decode_max_query_len": 0,
    }.items():
        if not check_metadata(replace(metadata, **{name: value}), SparseMLAMetadata, batch=batch, facts=FACTS):
            raise SystemExit(f"a planted fault in {name} is not reported")

    def build() -> None:
        """Build nothing."""

    if validated(SparseMLAMetadata)(build) is not build:
        raise SystemExit("with the mode unset the wrapped function is another one; unset MLA_CONTRACT_VALIDATE")


def times_of(sides: dict[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, Times]:
    """Return the times of all sides, run in turn so that a slow spell of the machine meets all of them."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            begin = time.thread_time()
            for _ in range(calls):
                side()
            samples[name].append((time.thread_time() - begin) / calls * 1e6)
    found = {}
    for name, values in samples.items():
        low, median, high = statistics.quantiles(values, n=4)
        found[name] = Times(low, median, high)
    return found


class Case(NamedTuple):
    """What the requests of a batch are: the share of decodes, and of live ones before padding of a captured size."""

    decodes: float
    dense_prefill: bool = False
    live: float = 1.0


def rows_of(parts: Any, num_reqs: int, case: Case) -> dict[str, Callable[[], object]]:
    """Return the sides of one case, after checking them."""
    common_class = parts[0]
    queries, lens = lengths(num_reqs, int(num_reqs * case.decodes))
    lens[int(num_reqs * case.live) :] = 0
    batch = common_class(**batch_fields(queries, lens))
    build = vllm_builder(parts, batch, dense_prefill=case.dense_prefill)
    metadata = build()
    check_correct(metadata, batch)

    def check(level: Level) -> Callable[[], object]:
        return lambda: check_metadata(metadata, SparseMLAMetadata, batch=batch, facts=FACTS, level=level)

    return {"vLLM build": build, "structural": check(Level.STRUCTURAL), "values": check(Level.VALUES)}


CASES = {
    "mixed": Case(0.5),
    "mixed, dense prefill": Case(0.5, dense_prefill=True),
    "decode only": Case(1.0),
    "decode only, padded": Case(1.0, live=0.8),
}


def main() -> int:
    """Print one row for each case and side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256])
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts, version = vllm_parts()
    print(f"python {platform.python_version()}, torch {torch.__version__}, vLLM {version}, {platform.machine()}")
    if parts is None:
        print(f"no rows: {version}")
        return 1
    print(f"{'case':<22}{'requests':>9}  {'side':<11}{'median us':>10}{'quartiles':>18}{'ratio':>8}")
    for name, case in CASES.items():
        for size in options.sizes:
            sides = rows_of(parts, size, case)
            times = times_of(sides, options.rounds, options.calls)
            base = times["vLLM build"].median_us
            for side, found in times.items():
                spread = f"{found.low_us:.1f}..{found.high_us:.1f}"
                ratio = found.median_us / base
                print(f"{name:<22}{size:>9}  {side:<11}{found.median_us:>10.1f}{spread:>18}{ratio:>8.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
