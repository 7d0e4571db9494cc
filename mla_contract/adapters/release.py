"""Where vLLM releases plan differently, as switches that a profile selects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from mla_contract.adapters.fault import InvalidBatch

OLDEST = "0.19"
NEWEST = "0.33"
"""Latest minor release whose planning functions were compared with these."""


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
def behaviour_of(release: str) -> Behaviour:
    """Return the behaviour of a vLLM release.

    Args:
        release: A version or a minor release, such as ``0.32.0`` or ``0.32``.

    Raises:
        InvalidBatch: The release is outside the range that was compared.

    Sync: none.
    """
    parts = release.split(".")
    minor = int(parts[1]) if len(parts) > 1 and parts[0] == "0" and parts[1].isdigit() else -1
    oldest, newest = (int(bound.split(".")[1]) for bound in (OLDEST, NEWEST))
    if not oldest <= minor <= newest:
        raise InvalidBatch(
            "release",
            {"expected": f"{OLDEST} to {NEWEST}", "got": repr(release)},
            help="pin a profile of a release in the range; a newer one needs a comparison first",
        )
    return Behaviour(
        uniform_shortcut_ignores_prefilling=minor <= 25,
        padding_starts_prefills=minor <= 30,
        packed_context=minor >= 28,
    )
