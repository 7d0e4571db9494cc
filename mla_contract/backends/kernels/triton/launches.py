"""Which launch configuration an operation gets: by architecture and shape class, out of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from mla_contract.backends.kernels.triton.launch_table import ROWS


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is launched for one class of shapes.

    Attributes:
        rows: Heads of a tile of the attention, query heads of a tile of logits, or tokens and keys of a tile of pages.
        columns: Entries or keys of a tile, positions or columns of a block.
        warps: Warps of a program.
        stages: Tiles that are in flight.
        programs: Programs that fill the device: rows are split until there are as many.
        tiled: Whether attention runs the kernel for products of groups of warps, where its shape allows.
    """

    rows: int = 16
    columns: int = 16
    warps: int = 4
    stages: int = 2
    programs: int = 256
    tiled: bool = False


USUAL_WIDTH = 576
"""Widest padded row for which the tiles of the head classes fit: a latent part of 512 and a rope part of 64."""

ANY = "any"
"""Row for architectures that are not listed: tiles that fit 64 KiB of shared memory on AMD's and 99 KiB on NVIDIA's.

``scripts/compile_triton.py`` holds them to it. Waves may have 32 or 64 lanes.
"""

TABLE: Mapping[str, Mapping[str, Launch]] = MappingProxyType(
    {arch: {name: Launch(**given) for name, given in classes.items()} for arch, classes in ROWS.items()}
)
"""Architecture to shape class to launch. A class that an architecture does not list is taken from the row ``any``."""


def find_launch(arch: str, shape_class: str) -> Launch:
    """Return the launch of a shape class on an architecture."""
    return TABLE.get(arch, {}).get(shape_class) or TABLE[ANY][shape_class]


def attend_class(num_heads: int, width: int, dot_type: torch.dtype) -> str:
    """Return the shape class of an attention.

    Args:
        num_heads: Query heads.
        width: Padded elements of a cached row.
        dot_type: Element type of the products.
    """
    if dot_type is torch.float32:
        return "attend_float32"
    if width > USUAL_WIDTH:
        return "attend_wide"
    return "attend_16" if num_heads <= 16 else "attend_32" if num_heads <= 32 else "attend_64"


def logits_class(kind: str, dot_type: torch.dtype) -> str:
    """Return the shape class of logits of one kind, by the element type of the products."""
    return f"{kind}_{8 * dot_type.itemsize}bit"
