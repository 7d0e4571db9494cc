"""Which attention kernels exist, as data: by arch, element types and heads, for rows of one token and pages of one.

Valid for aiter 0.1.20, where ``mla_decode_fwd`` has gained ``causal``. Older releases have every persistent variant
too (natively or by folding heads into groups of 16), but nothing is known of their other columns.

Source: aiter v0.1.20 hsa/<arch>/mla/mla_asm.csv, aiter/mla.py, csrc/kernels/mla/metadata
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

HEAD_GROUP = 16
"""Heads are padded to a multiple of this."""

MAX_HEADS = 128
"""Most heads of one call."""

WIDTH, VALUE_WIDTH = 576, 512
"""Row of the cache and its latent part: the only geometry that the code objects have."""


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """One combination.

    Attributes:
        plain: Whether the non-persistent kernel exists.
        persistent_lse: Whether the persistent kernel can write the LSE; the non-persistent one always can.
        needs_dtypes: Whether planner and kernel fold heads differently unless the planner is told the element types.
        granularity: Smallest block of KV positions by which the planner may cut.
        lse_splits: Splits that the non-persistent kernel must be given when it writes the LSE; None for its own choice.
    """

    plain: bool = False
    persistent_lse: bool = False
    needs_dtypes: bool = False
    granularity: int = 16
    lse_splits: int | None = None


@dataclass(frozen=True, slots=True)
class _Column:
    """Sets of head counts for which something holds."""

    plain: frozenset[int] = frozenset()
    persistent_lse: frozenset[int] = frozenset()
    needs_dtypes: frozenset[int] = frozenset()
    coarse: frozenset[int] = frozenset()


def _lse_splits(key: tuple[str, str, str], heads: int) -> int | None:
    """Return the splits for the LSE: one fp8 split writes none; gfx950 mishandles split ragged tails at 32 heads."""
    if key[1] == "fp8":
        return 2
    return 1 if key == ("gfx950", "bfloat16", "bfloat16") and heads == 32 else None


_ALL = frozenset(range(HEAD_GROUP, MAX_HEADS + 1, HEAD_GROUP))

_COLUMNS: Mapping[tuple[str, str, str], _Column] = MappingProxyType(
    {
        ("gfx942", "bfloat16", "bfloat16"): _Column(plain=frozenset({16, 32, 128})),
        ("gfx942", "bfloat16", "fp8"): _Column(),
        ("gfx942", "fp8", "fp8"): _Column(
            plain=frozenset({16, 128}),
            persistent_lse=frozenset({64}),
            needs_dtypes=frozenset({64, 128}),
            coarse=frozenset({64}),
        ),
        ("gfx950", "bfloat16", "bfloat16"): _Column(plain=frozenset({16, 32, 64, 128}), persistent_lse=_ALL),
        ("gfx950", "bfloat16", "fp8"): _Column(needs_dtypes=_ALL - {16}),
        ("gfx950", "fp8", "fp8"): _Column(
            plain=frozenset({16, 128}), persistent_lse=_ALL, needs_dtypes=frozenset({48, 80, 96, 112})
        ),
    }
)

ARCHES = tuple(dict.fromkeys(arch for arch, _, _ in _COLUMNS))
"""Arches that have kernels for this path."""

TABLE: Mapping[tuple[str, str, str, int], KernelVariant] = MappingProxyType(
    {
        (*key, heads): KernelVariant(
            heads in column.plain,
            heads in column.persistent_lse,
            heads in column.needs_dtypes,
            32 if heads in column.coarse else 16,
            _lse_splits(key, heads),
        )
        for key, column in _COLUMNS.items()
        for heads in sorted(_ALL)
    }
)
"""(arch, q, kv, padded heads) to variant; element types are ``bfloat16`` or ``fp8``. What is missing does not exist."""


def padded_heads(num_heads: int) -> int:
    """Return the heads that the kernel gets: the next multiple of 16."""
    return -(-num_heads // HEAD_GROUP) * HEAD_GROUP


def find_variant(arch: str, q: str, kv: str, num_heads: int) -> KernelVariant | str:
    """Return the variant of a combination, or why there is none."""
    if arch not in ARCHES:
        return f"aiter has no kernel for this path on {arch}; it has on {', '.join(ARCHES)}"
    if not 1 <= num_heads <= MAX_HEADS:
        return f"{num_heads} heads: aiter takes 1 to {MAX_HEADS}"
    variant = TABLE.get((arch, q, kv, padded_heads(num_heads)))
    if variant is None:
        pairs = ", ".join(f"{a}/{b}" for own, a, b in _COLUMNS if own == arch)
        return f"q {q} with kv {kv}: aiter has {pairs} on {arch}"
    return variant
