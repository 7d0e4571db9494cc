"""Targets of the conformance suite: the reference ones, those that packages register, and those named by users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from mla_contract.adapters.batch import BatchShape
from mla_contract.adapters.buffers import PlanBuffers
from mla_contract.adapters.capacity import Capacity
from mla_contract.adapters.plan import PlanConfig, plan_batch
from mla_contract.backends.entry_points import load_value
from mla_contract.backends.registry import find_backend, known_backends
from mla_contract.contract.schema.declaration import BackendDeclaration, Routing
from mla_contract.contract.step.facts import Facts
from mla_contract.errors import InvalidContract
from mla_contract.testing.lowering import LoweredKind, Setup, lower
from mla_contract.testing.target import Expectations, Factory


@dataclass(frozen=True, slots=True)
class NamedTarget:
    """A factory by name, or why it cannot be had.

    Attributes:
        name: The target's name.
        factory: Makes it anew; None where it cannot be had.
        reason: Why not.
        variant: Which of its configurations; empty where there is one.
    """

    name: str
    factory: Factory | None
    reason: str = ""
    variant: str = ""

    @property
    def label(self) -> str:
        """Name and variant."""
        return f"{self.name}[{self.variant}]" if self.variant else self.name

    def place(self, batch: str) -> str:
        """Return a batch's name with the variant that built it."""
        return f"{batch} [{self.variant}]" if self.variant else batch


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
            num_actual_tokens=batch.num_actual_tokens,
            max_query_len=batch.max_query_len,
            is_prefilling=None if flags is None else flags.numpy(),
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


def load_targets(name: str) -> tuple[NamedTarget, ...]:
    """Return the target of a registered backend, or the one that ``module:factory`` names: one for each variant.

    A target is a factory, or a mapping of factories: the builder in several configurations.

    Raises:
        InvalidContract: There is no such backend, it has no target, or the module has no such callable.
    """
    value = name
    if ":" not in name:
        backend = find_backend(name)
        if isinstance(backend, str):
            raise InvalidContract(f"{name}: {backend}; other targets are named as module:factory")
        if not backend.target:
            raise InvalidContract(f"{name}: this backend registers no target")
        value = backend.target
    found = load_value(value)
    if isinstance(found, str):
        raise InvalidContract(f"{name}: {found}")
    variants = found if isinstance(found, Mapping) else {"": found}
    for variant, factory in variants.items():
        if not callable(factory):
            place = f"{value}[{variant!r}]" if variant else value
            raise InvalidContract(f"{name}: {place} is not callable, but {factory!r}")
    return tuple(NamedTarget(name, factory, variant=variant) for variant, factory in variants.items())


def load_factory(name: str) -> Factory:
    """Return the factory of a target; of one with variants, that of the first. Raises as ``load_targets``."""
    factory = load_targets(name)[0].factory
    if factory is None:
        raise InvalidContract(f"{name}: no variant")
    return factory


def registered_targets() -> tuple[NamedTarget, ...]:
    """Return the targets of all registered backends; one that registers none is left out."""
    names = [name for name, one in known_backends().items() if isinstance(one, str) or one.target]
    return tuple(target for name in names for target in _targets(name))


def _targets(name: str) -> tuple[NamedTarget, ...]:
    """Return the target of a registered backend, or why it cannot be had."""
    try:
        return load_targets(name)
    except InvalidContract as error:
        return (NamedTarget(name, None, str(error)),)
