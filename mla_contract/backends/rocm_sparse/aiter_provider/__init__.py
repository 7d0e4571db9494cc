"""aiter as a kernel provider: bound late, validated beforehand, because a failed check inside ends the process."""

from mla_contract.backends.rocm_sparse.aiter_provider.device import DeviceInfo
from mla_contract.backends.rocm_sparse.aiter_provider.provider import AiterProvider
from mla_contract.backends.rocm_sparse.aiter_provider.work import allocate_work

__all__ = ["AiterProvider", "DeviceInfo", "allocate_work"]
