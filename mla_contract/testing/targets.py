"""Targets of the conformance suite: the reference ones, those that packages register, and those named by users."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.buffers import PlanBuffers
from mla_contract.adapters.capacity import Capacity
from mla_contract.adapters.plan import PlanConfig, plan_batch
from mla_contract.contract.schema.declaration import BackendDeclaration, Routing
from mla_contract.contract.step.facts import Facts
from mla_contract.errors import InvalidContract
from mla_contract.testing.conformance import ConformanceTarget, Expectations, Factory
from mla_contract.testing.lowering import LoweredKind, Setup, lower

ENTRY_POINTS = "mla_contract.backends"
"""Group of entry points under which packages register factories of targets."""
OWN: Mapping[str, str] = MappingProxyType(
    {
        "rocm_sparse": "mla_contract.backends.rocm_sparse.target:rocm_sparse",
        "sparse_indexer": "mla_contract.backends.sparse.target:sparse_indexer",
        "cuda_sparse": "mla_contract.backends.cuda_sparse.target:cuda_sparse",
    }
)
"""Factories of this package, also where its entry points are not installed; absent ones are left out."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A factory by name, or why it cannot be had."""

    name: str
    factory: Factory | None
    reason: str = ""


_CAPACITY = Capacity(
    max_num_seqs=256, max_num_batched_tokens=8192, next_n=8, max_context_tokens=1 << 18, workspace_rows=1024
)


class ReferenceTarget:
    """The shared plan lowered as it is: what the suite takes for right, and the smallest example of a target."""

    _PERSISTENT: Mapping[LoweredKind, Mapping[str, str]] = MappingProxyType(
        {
            LoweredKind.SPARSE: {"req_id_per_token": "req_id_per_token"},
            LoweredKind.AITER: {"req_id_per_token": "req_id_per_token", "paged_kv_indptr": "sparse_start_loc"},
        }
    )
    """Fields that are views of persistent buffers, and the buffers' names."""

    def __init__(self, kind: LoweredKind = LoweredKind.SPARSE, config: PlanConfig | None = None) -> None:
        self.setup = Setup(kind=kind, config=config or _reference_config(kind))
        self._buffers = PlanBuffers(_CAPACITY, "cpu")

    @property
    def declaration(self) -> BackendDeclaration:
        """What the reference says of itself."""
        return BackendDeclaration(
            name=f"reference_{self.setup.kind}", routing=Routing.SHARED_SPLIT, dense_prefill=True, decode_lse=False
        )

    @property
    def facts(self) -> Facts:
        """The configuration."""
        return self.setup.facts()

    @property
    def expectations(self) -> Expectations:
        """The persistent fields of the record."""
        return Expectations(
            persistent=tuple(self._PERSISTENT.get(self.setup.kind, {})), release=self.setup.config.release
        )

    def build(self, batch: Any) -> Any:
        """Return the record of the shared plan."""
        flags = batch.is_prefilling
        shape = BatchShape.from_start_loc(
            batch.query_start_loc_cpu.numpy(),
            batch.seq_lens_cpu_upper_bound.numpy(),
            is_prefilling=None if flags is None else flags.numpy(),
            block_table=batch.block_table_tensor.numpy(),
        )
        plan = plan_batch(shape, self.setup.config)
        metadata = lower(batch, plan, self.setup)
        fields = self._PERSISTENT.get(self.setup.kind, {})
        if fields:
            arrays = self._buffers.lower(plan)
            for field, buffer in fields.items():
                setattr(metadata, field, arrays[buffer])
        return metadata


def _reference_config(kind: LoweredKind) -> PlanConfig:
    """Return a configuration under which every ordered batch of the corpus can be planned."""
    indexer = kind is LoweredKind.INDEXER
    return PlanConfig(
        block_size=16,
        workspace_rows=None if indexer else 1024,
        indexer_states=16384 if indexer else None,
        topk_tokens=64 if kind in (LoweredKind.SPARSE, LoweredKind.AITER) else None,
        flatten_decodes=True,
    )


def reference_targets() -> Mapping[str, Factory]:
    """Return the factory of the reference target of each kind."""
    return {f"reference {kind}": partial(ReferenceTarget, kind) for kind in LoweredKind}


def load_factory(name: str) -> Factory:
    """Return the factory that ``module:attribute`` names.

    Raises:
        InvalidContract: The module cannot be imported, or has no such callable.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InvalidContract(f"{name!r}: name a target as module:factory")
    try:
        found = import_module(module)
    except Exception as error:  # the module is foreign: whatever it raises is why it cannot be imported
        raise InvalidContract(f"{name}: {module} cannot be imported: {type(error).__name__}: {error}") from error
    factory = getattr(found, attribute, None)
    if not callable(factory):
        raise InvalidContract(f"{name}: {module} has no callable {attribute}")
    made: Callable[[], ConformanceTarget] = factory
    return made


def registered_targets() -> tuple[Registered, ...]:
    """Return the targets of this package that are there, and those of other packages by their entry points."""
    values = {name: value for name, value in OWN.items() if _is_there(value.partition(":")[0])}
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.value not in OWN.values():
            values[entry.name] = entry.value
    return tuple(_loaded(name, value) for name, value in values.items())


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _loaded(name: str, value: str) -> Registered:
    try:
        return Registered(name, load_factory(value))
    except InvalidContract as error:
        return Registered(name, None, str(error))
