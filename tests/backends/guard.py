"""Watches the operations of an indexer: raises before keys are scored that nobody gathered, or that lie elsewhere."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor

from mla_contract.contract.clauses.registry import all_clauses as clauses
from mla_contract.contract.schema.provider import ChunkLogits, GatherIndexerK, KernelProvider, Operation
from mla_contract.contract.step.context import StepContext
from mla_contract.contract.step.trace import BuildTrace, Workspace
from mla_contract.contract.violation import Violation
from mla_contract.errors import ContractError
from tests.backends.reservations import KnownWorkspace

R = TypeVar("R")


class GuardedProvider:
    """A provider that lets an operation pass only if its keys are where the plan put them.

    Keys must be gathered into reserved memory (clause MLA405), and a chunk may score only keys that the last gather
    wrote (clause MLA362): a consumer that ignores ``skip_kv_gather`` and takes a new buffer breaks one or both.
    """

    def __init__(self, inner: KernelProvider, reserved: KnownWorkspace) -> None:
        self.name = f"guarded {inner.name}"
        self._inner, self._reserved = inner, reserved
        self._gathered: tuple[int, int] | None = None

    def reason(self, inputs: Operation[Any]) -> str | None:
        """Return the inner provider's reason. Sync: none."""
        return self._inner.reason(inputs)

    def run(self, inputs: Operation[R]) -> R:
        """Check, then run the operation.

        Raises:
            ContractError: Keys are not where they should be; nothing has been computed then.

        Sync: none of its own.
        """
        if isinstance(inputs, GatherIndexerK):
            self._check_place(inputs.k_out)
            self._gathered = inputs.k_out.data_ptr(), inputs.num_keys
        if isinstance(inputs, ChunkLogits):
            self._check_keys(inputs.k)
        return self._inner.run(inputs)

    def _check_place(self, keys: Tensor) -> None:
        """Raise unless the keys lie in reserved memory."""
        if self._reserved.holds(keys):
            return
        space = Workspace(sites=frozenset({"indexer keys"}), planned_sites=frozenset())
        subject = StepContext(trace=BuildTrace(workspace=space))
        raise ContractError(
            violations=[one for rule in clauses() if rule.id == "MLA405" for one in rule.check(subject)]
        )

    def _check_keys(self, keys: Tensor) -> None:
        """Raise unless the last gather wrote the keys."""
        written = f"{self._gathered[1]} rows at {self._gathered[0]:#x}" if self._gathered else "nothing"
        if self._gathered is not None and keys.data_ptr() == self._gathered[0] and len(keys) <= self._gathered[1]:
            return
        raise ContractError(
            violations=[
                Violation(
                    "MLA362",
                    "ChunkLogits.k",
                    "a chunk scores keys that no gather wrote",
                    f"the rows of the last gather: {written}",
                    f"{len(keys)} rows at {keys.data_ptr():#x}",
                    help="with skip_kv_gather the keys of the chunk before are still in its buffer: use that buffer",
                )
            ]
        )
