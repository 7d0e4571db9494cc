"""aiter as a kernel provider: bound late, validated beforehand, because a failed check inside ends the process."""

from mla_contract.backends.kernels.aiter.device import AiterDevice
from mla_contract.backends.kernels.aiter.provider import AiterProvider
from mla_contract.backends.kernels.aiter.work import allocate_work

__all__ = ["AiterProvider", "AiterDevice", "allocate_work"]
