"""A stand-in for aiter: real signatures of a chosen release, real semantics in torch, and none of its mercy.

What aiter leaves unwritten or unspecified is poisoned; where aiter would end the process, ``AiterAbort`` is raised.
"""

from mla_contract.testing.aiter_double.chip import AiterAbort, Chip
from mla_contract.testing.aiter_double.install import Double, install
from mla_contract.testing.aiter_double.signatures import RELEASES

__all__ = ["RELEASES", "AiterAbort", "Chip", "Double", "install"]
