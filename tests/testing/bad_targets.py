"""Targets with one fault each, made of the reference target; the suite must name the clause that each breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from mla_contract.testing.lowering import LoweredKind
from mla_contract.testing.target import Expectations
from mla_contract.testing.targets import ReferenceTarget
from tests.lab.field_faults import without


def good() -> ReferenceTarget:
    """Return the target without a fault."""
    return ReferenceTarget(LoweredKind.DENSE)


class StaleTail(ReferenceTarget):
    """Writes live rows of a persistent buffer, and leaves those of padding requests as the last step left them."""

    def __init__(self) -> None:
        super().__init__(LoweredKind.DENSE)
        self._lens = torch.zeros(256, dtype=torch.int32)

    def build(self, batch: Any) -> Any:
        """Return metadata with decode lengths in the buffer."""
        metadata = super().build(batch)
        if metadata.decode is not None:
            lens = metadata.decode.seq_lens
            live = int((lens > 0).sum())
            self._lens[:live] = lens[:live]
            metadata.decode.seq_lens = self._lens[: len(lens)]
        return metadata


class MissingField(ReferenceTarget):
    """Forgets a count that the shared layer reads."""

    def build(self, batch: Any) -> Any:
        """Return metadata without ``num_decode_tokens``."""
        return without(super().build(batch), "num_decode_tokens")


class WrongSplit(ReferenceTarget):
    """Routes every decode as a prefill."""

    def __init__(self) -> None:
        super().__init__(LoweredKind.DENSE)

    def build(self, batch: Any) -> Any:
        """Return metadata split as if every request still computed its prompt."""
        own = self.setup
        config = replace(own.config, treat_short_extends_as_decodes=False)
        self.setup = replace(own, config=config)
        try:
            return super().build(replace(batch, is_prefilling=torch.ones(batch.num_reqs, dtype=torch.bool)))
        finally:
            self.setup = own


class MovedBuffer(ReferenceTarget):
    """Returns a new array where a captured graph reads a persistent one."""

    def build(self, batch: Any) -> Any:
        """Return metadata with copied request ids."""
        metadata = super().build(batch)
        metadata.req_id_per_token = metadata.req_id_per_token.clone()
        self.__dict__.setdefault("kept", []).append(metadata.req_id_per_token)  # else memory may be used again
        return metadata


class Raising(ReferenceTarget):
    """Raises on a batch with padding."""

    def build(self, batch: Any) -> Any:
        """Return metadata, or raise."""
        self._refuse(batch.seq_lens_cpu_upper_bound.tolist())
        return super().build(batch)

    def _refuse(self, lens: list[int]) -> None:
        if 0 in lens:
            raise ValueError("padding")  # the author's line


class NoExpectations(ReferenceTarget):
    """A target whose author took expectations for a list."""

    @property
    def expectations(self) -> Any:
        """Return what is not expectations."""
        return ()


class WrongMembers(ReferenceTarget):
    """A target with mistakes in all its members."""

    declaration: Any = None
    facts: Any = {}
    expectations: Any = Expectations(persistent="req_id_per_token")  # type: ignore[arg-type]
    build: Any = None


class RaisingProperty(ReferenceTarget):
    """A target whose property raises."""

    @property
    def facts(self) -> Any:
        """Raise."""
        raise LookupError("no block size")  # the author's property


def not_made() -> ReferenceTarget:
    """Raise instead of making a target."""
    raise OSError("no device")  # the author's factory
