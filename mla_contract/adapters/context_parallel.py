"""Decode context parallelism: which tokens of a request a rank stores."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mla_contract.adapters.arrays import Int32Array, IntsLike
from mla_contract.adapters.fault import InvalidConfig, SettingFault, int_faults, validate_settings


@dataclass(frozen=True, slots=True)
class ContextParallel:
    """How ranks share the cache of each request: runs of ``interleave`` tokens, dealt out in turn.

    Attributes:
        size: Ranks that share; 1 where none do.
        rank: This rank.
        interleave: Tokens of a run.
        span: Tokens of one round of dealing: ``size * interleave``.
    """

    size: int = 1
    rank: int = 0
    interleave: int = 1
    span: int = field(init=False)

    def __post_init__(self) -> None:
        faults = int_faults(self, {"size": 1, "rank": 0, "interleave": 1})
        if not faults and self.rank >= self.size:
            faults.append(SettingFault("ContextParallel.rank", f"below size={self.size}", self.rank))
        validate_settings(faults)
        object.__setattr__(self, "span", self.size * self.interleave)

    def in_states(self, compress_ratio: int) -> ContextParallel:
        """Return the same sharing counted in states of ``compress_ratio`` tokens.

        Raises:
            InvalidConfig: A state would lie on two ranks.

        Sync: none.
        Source: vLLM 0.32.0 v1/attention/backends/mla/indexer.py, DeepseekV32IndexerMetadataBuilder.
        """
        if self.size == 1 or compress_ratio == 1:
            return self
        if self.interleave % compress_ratio:
            expected = f"a multiple of compress_ratio={compress_ratio}"
            fault = SettingFault(
                "ContextParallel.interleave", expected, self.interleave, "a state must lie on one rank"
            )
            raise InvalidConfig([fault])
        return ContextParallel(self.size, self.rank, self.interleave // compress_ratio)


def local_lens(lens: IntsLike, parallel: ContextParallel) -> Int32Array:
    """Return the tokens of each length that this rank stores.

    Args:
        lens: Any shape, ints >= 0.
        parallel: The sharing; ``lens`` and ``interleave`` are in one unit.

    Returns:
        The shape of ``lens``, int32; over all ranks they sum to ``lens``.

    Sync: none.
    Source: vLLM 0.32.0 v1/attention/backends/utils.py, get_dcp_local_seq_lens with a rank.
    """
    array = np.asarray(lens, dtype=np.int32)
    if parallel.size == 1:
        return array.copy()
    return _dealt(array, parallel, parallel.rank * parallel.interleave)


def local_lens_of_ranks(lens: IntsLike, parallel: ContextParallel) -> Int32Array:
    """Return the tokens of each length on every rank.

    Args:
        lens: Any shape, ints >= 0.
        parallel: The sharing; its rank is not read.

    Returns:
        The shape of ``lens`` and one more dim of ``size`` ranks, int32.

    Sync: none.
    Source: vLLM 0.32.0 v1/attention/backends/utils.py, get_dcp_local_seq_lens without a rank.
    """
    array = np.asarray(lens, dtype=np.int32)[..., np.newaxis]
    return _dealt(array, parallel, np.arange(parallel.size, dtype=np.int32) * parallel.interleave)


def _dealt(lens: Int32Array, parallel: ContextParallel, begin: int | Int32Array) -> Int32Array:
    """Return whole rounds and the part of the last round from ``begin`` on, at most one interleave."""
    rounds = lens // parallel.span
    last: Int32Array = np.maximum(lens - rounds * parallel.span - begin, 0)
    np.minimum(last, parallel.interleave, out=last)
    last += rounds * parallel.interleave
    return last
