"""The reference provider: torch on any device, and the definition of correct."""

from mla_contract.backends.kernels.reference.provider import ReferenceProvider

__all__ = ["ReferenceProvider"]
