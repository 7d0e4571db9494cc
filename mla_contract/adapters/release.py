"""Where vLLM releases plan differently, as switches that a profile selects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from mla_contract.profiles.release import nearest_minor

NEWEST = "0.33"
"""Latest minor release whose planning functions were compared with these."""
COMPARED = tuple(f"0.{number}" for number in range(19, 34))
"""Every minor release whose planning functions were compared with these."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What one line of releases does where lines differ.

    Attributes:
        uniform_shortcut_ignores_prefilling: A batch of one query length is all decodes, even if short extends are to be
            prefills. True up to 0.25.
        padding_starts_prefills: In a uniform split, a row without query tokens ends the decodes. True up to 0.30.
        packed_context: Context chunks are packed, and are records; else the workspace is divided evenly, and parallel
            arrays describe all chunks. True since 0.28.

    Source: vLLM 0.25.0, 0.26.0, 0.31.0 v1/attention/backends/utils.py; 0.27.1, 0.28.0
        model_executor/layers/attention/mla_attention.py.
    """

    uniform_shortcut_ignores_prefilling: bool
    padding_starts_prefills: bool
    packed_context: bool


@cache
def behaviour_of(release: str | None) -> Behaviour:
    """Return the behaviour of a vLLM release, or of the nearest one that was compared.

    Args:
        release: A version or a minor release, such as ``0.32.0`` or ``0.32``; None where none is known.

    Sync: none.
    """
    minor = nearest_minor(release, COMPARED).number
    return Behaviour(
        uniform_shortcut_ignores_prefilling=minor <= 25,
        padding_starts_prefills=minor <= 30,
        packed_context=minor >= 28,
    )
