"""The sparse MLA backend for ROCm: aiter's paged tables, with persistent work. Its name stands here."""

from mla_contract.backends.registry import RegisteredBackend

BACKEND = RegisteredBackend(
    name="rocm_sparse",
    target="mla_contract.testing.sparse_targets:ROCM_SPARSE",
    engine_class="mla_contract.backends.vllm.backend:RocmSparse",
)
