"""Providers with one fault each, made of the reference; the suite must find each, where it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mla_contract.backends.kernels.aiter import AiterDevice, AiterProvider
from mla_contract.backends.kernels.reference import ReferenceProvider
from mla_contract.contract.schema.provider import MapSlots, Operation, SparseAttention, WriteIndexerK


class _Faulty(ReferenceProvider):
    """The reference, whose work somebody changes afterwards."""

    def run(self, inputs: Operation[Any]) -> Any:
        """Run, and spoil."""
        result = super().run(inputs)
        self.spoil(inputs)
        return result

    def spoil(self, inputs: Operation[Any]) -> None:
        """Change something."""


class NonsenseMap(ReferenceProvider):
    """Maps every position to its own number."""

    def run(self, inputs: Operation[Any]) -> Any:
        """Run what is right, and map nonsense."""
        if not isinstance(inputs, MapSlots):
            return super().run(inputs)
        inputs.out.copy_(inputs.positions)
        return None


class UnwrittenRow(ReferenceProvider):
    """Leaves the last row as it was."""

    def run(self, inputs: Operation[Any]) -> Any:
        """Run, and put the last row back."""
        out = getattr(inputs, "out", None)
        before = out[-1:].clone() if isinstance(out, Tensor) else None
        result = super().run(inputs)
        if isinstance(out, Tensor) and before is not None:
            out[-1:] = before
        return result


class BeyondRows(_Faulty):
    """Writes the row behind the output."""

    def spoil(self, inputs: Operation[Any]) -> None:
        """Write one row more."""
        out = getattr(inputs, "out", None)
        if isinstance(out, Tensor) and len(out):
            behind = out.as_strided(out[:1].shape, out.stride(), out.storage_offset() + len(out) * out.stride(0))
            behind.fill_(1)


class BetweenRows(_Faulty):
    """Takes strided rows for packed ones."""

    def spoil(self, inputs: Operation[Any]) -> None:
        """Write behind the columns of the first row."""
        out = getattr(inputs, "out", None)
        if isinstance(out, Tensor) and out.dim() == 2 and len(out) and out.stride(0) > out.shape[1]:
            out.as_strided((1,), (1,), out.storage_offset() + out.shape[1]).fill_(1)


class BinaryLse(_Faulty):
    """Returns the LSE to the base 2."""

    def spoil(self, inputs: Operation[Any]) -> None:
        """Change the base."""
        if isinstance(inputs, SparseAttention) and inputs.lse is not None:
            inputs.lse.div_(torch.log(torch.tensor(2.0)))


class ChangedInput(_Faulty):
    """Sorts the indices in place."""

    def spoil(self, inputs: Operation[Any]) -> None:
        """Change an input."""
        if isinstance(inputs, SparseAttention):
            inputs.kv_indices.copy_(inputs.kv_indices.flip(0))


class GarbageReader(ReferenceProvider):
    """Counts the entries behind the last offset among those of the last row."""

    def run(self, inputs: Operation[Any]) -> Any:
        """Run with one entry more."""
        if isinstance(inputs, SparseAttention) and int(inputs.kv_indices[-1]) >= len(inputs.kv_cache):
            raise IndexError(f"slot {int(inputs.kv_indices[-1])} is not in the cache")  # the author's kernel
        return super().run(inputs)


class StoredPadding(_Faulty):
    """Stores tokens without a slot in slot 0."""

    def spoil(self, inputs: Operation[Any]) -> None:
        """Write a key that no token has."""
        if isinstance(inputs, WriteIndexerK):
            inputs.cache[0, 0] += 1


class WritesAndRefuses(ReferenceProvider):
    """Refuses maps and writes all the same."""

    def reason(self, inputs: Operation[Any]) -> str | None:
        """Return a reason."""
        return "not today" if isinstance(inputs, MapSlots) else super().reason(inputs)

    def run(self, inputs: Operation[Any]) -> Any:
        """Write, then raise."""
        if isinstance(inputs, MapSlots):
            inputs.out.fill_(0)
        return super().run(inputs)


class NoTextReason(ReferenceProvider):
    """Answers with a bool."""

    def reason(self, inputs: Operation[Any]) -> Any:
        """Return a bool."""
        return True


class BadWork(AiterProvider):
    """Plans work for other offsets than it is given, through the double."""

    def run(self, inputs: Operation[Any]) -> Any:
        """Run, and lose the last item's end."""
        result = super().run(inputs)
        if hasattr(inputs, "buffers"):
            inputs.buffers.work_info_set[0, 5] -= 1
        return result


def aiter_double() -> AiterProvider:
    """Return the provider for a pretended GPU; the double must be installed."""
    return AiterProvider(AiterDevice("gfx950", "cpu"))


def bad_work() -> BadWork:
    """Return the one with wrong work."""
    return BadWork(AiterDevice("gfx950", "cpu"))


def good() -> ReferenceProvider:
    """Return the provider without a fault."""
    return ReferenceProvider()


def nameless() -> object:
    """Return what is not a provider."""
    return object()
