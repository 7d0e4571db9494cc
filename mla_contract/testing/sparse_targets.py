"""The sparse backends as targets of the suite: both records of a step, in the configurations that differ in them.

Each names what it knows of its last build: the scratch that profiling reserved and the formula asks for, the calls that
planned persistent work, and what was reused. aiter's functions are the double's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from mla_contract.backends.cuda_sparse import declaration as cuda
from mla_contract.backends.cuda_sparse.builder import CudaSparseBuilder
from mla_contract.backends.cuda_sparse.metadata import CudaSparseMetadata
from mla_contract.backends.kernels.aiter import AiterDevice, AiterProvider
from mla_contract.backends.rocm_sparse import declaration as rocm
from mla_contract.backends.rocm_sparse.builder import RocmSparseBuilder
from mla_contract.backends.rocm_sparse.metadata import RocmSparseMetadata
from mla_contract.backends.sparse.builder import SparseBuilder
from mla_contract.backends.sparse.config import SparseConfig
from mla_contract.backends.sparse.target import TESTED
from mla_contract.backends.sparse.workspace import LocalWorkspace, plan_workspace
from mla_contract.contract.schema.declaration import BackendDeclaration
from mla_contract.contract.schema.provider import FillWork, Operation, SizeWork
from mla_contract.contract.step.facts import Facts
from mla_contract.contract.step.trace import BuildTrace, Call, Lane, PlannedWork, Workspace
from mla_contract.testing.aiter_double import install
from mla_contract.testing.target import Expectations

NATIVE = replace(TESTED, native_decode=True)
DENSE = replace(TESTED, dense_prefill=True, context_rows=16384, context_tokens=1 << 20, topk_tokens=2048)
WORK = replace(TESTED, persistent=True, next_n=1, max_num_batched_tokens=4096, topk_tokens=32)
RELEASE, ARCH = "0.1.20", "gfx950"
ROW_FIELDS = ("req_id_per_token", "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
"""Fields of the ROCm attention's record that a captured graph reads."""


class _RecordedAiter(AiterProvider):
    """aiter through its double, installed while it runs; keeps the configuration that each call of work got."""

    def __init__(self) -> None:
        super().__init__(AiterDevice(ARCH, "cpu"))
        self.calls: dict[int, list[Call]] = {}

    def reason(self, inputs: Operation[Any]) -> str | None:
        """Return the provider's reason."""
        with install(RELEASE, ARCH):
            return super().reason(inputs)

    def run(self, inputs: Operation[Any]) -> Any:
        """Run, and note what the calls of one batch size must agree on."""
        config = inputs.config if isinstance(inputs, SizeWork) else None
        if isinstance(inputs, FillWork):
            config = inputs.buffers.config
        if config is not None:
            arguments = {one.name: getattr(config, one.name) for one in fields(config)}
            self.calls.setdefault(config.num_rows, []).append(Call(type(inputs).__name__, arguments))
        with install(RELEASE, ARCH):
            return super().run(inputs)


@dataclass(kw_only=True)
class BackendTarget:
    """One backend in one configuration."""

    config: SparseConfig
    builder: SparseBuilder[Any]
    declaration: BackendDeclaration
    expectations: Expectations
    provider: _RecordedAiter | None = None
    space: Workspace = field(init=False)
    _work: Any = None

    def __post_init__(self) -> None:
        # As an engine does: everything is asked for once while profiling, and the sum is what was reserved.
        manager, plan = LocalWorkspace(), plan_workspace(self.config)
        plan.reserve(manager)
        users = {"indexer prefill": plan.prefill, "indexer decode": plan.decode, "attention": plan.attention}
        lane = Lane(0, "sparse")
        rows = {"rows": self.config.context_rows, "alignment": self.config.block_size}
        self.space = Workspace(
            reserved_bytes={lane: manager.num_bytes},
            needed_bytes={lane: max(one.total_bytes for one in users.values())},
            slack=1.25,
            **(rows if self.config.dense_prefill else {}),  # type: ignore[arg-type]
        )

    @property
    def facts(self) -> Facts:
        """The numbers of the configuration, and of a process that captures nothing and has no dummy step."""
        dense = self.config.dense_prefill
        return replace(
            self.config.facts,
            capturing=False,
            row_stride=self.config.width,
            wide_addresses=True,
            layer_allows_dense=dense,
            gather_reads_layout=True if dense else None,
            gather_kind="copy" if dense else None,
            cache_dtype=str(self.config.kv_dtype).rpartition(".")[2] if dense else None,
        )

    def build(self, batch: Any) -> Any:
        """Return the records of attention and indexer, by layer."""
        attention, indexer = self.builder.build_pair(batch)
        self._work = getattr(attention, "work", None)
        return {"attention": attention, "indexer": indexer}

    def trace(self) -> BuildTrace:
        """Return scratch, and the persistent work of the last build."""
        if self._work is None or self.provider is None:
            return BuildTrace(workspace=self.space)
        reuse = getattr(getattr(self.builder, "work", None), "last_reuse", None)
        return BuildTrace(
            workspace=self.space,
            planned_work=PlannedWork(self._work, self._work.kv_indptr),
            calls=tuple(self.provider.calls[self._work.config.num_rows]),
            reuse=None if reuse is None else (reuse,),
        )


def _rocm(config: SparseConfig) -> BackendTarget:
    provider = _RecordedAiter() if config.persistent else None
    return BackendTarget(
        config=config,
        builder=RocmSparseBuilder(config, providers=None if provider is None else (provider,)),
        declaration=rocm.declaration(config),
        expectations=Expectations(persistent=ROW_FIELDS, metadata_class=RocmSparseMetadata),
        provider=provider,
    )


def _cuda(config: SparseConfig) -> BackendTarget:
    return BackendTarget(
        config=config,
        builder=CudaSparseBuilder(config),
        declaration=cuda.declaration(config),
        expectations=Expectations(persistent=("req_id_per_token",), metadata_class=CudaSparseMetadata),
    )


def _variants(make: Callable[[SparseConfig], BackendTarget], **configs: SparseConfig) -> Mapping[str, Any]:
    return MappingProxyType({name: partial(make, config) for name, config in configs.items()})


ROCM_SPARSE = _variants(_rocm, flat=TESTED, native=NATIVE, dense_prefill=DENSE, work=WORK)
"""The ROCm sparse backend; only here is work planned ahead."""
CUDA_SPARSE = _variants(_cuda, flat=TESTED, native=NATIVE, dense_prefill=DENSE)
"""The CUDA sparse backend."""
