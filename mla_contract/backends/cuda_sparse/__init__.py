"""The sparse MLA backend for CUDA: padded rows of positions. Its name stands here."""

from mla_contract.backends.registry import RegisteredBackend

BACKEND = RegisteredBackend(
    name="cuda_sparse",
    target="mla_contract.testing.sparse_targets:CUDA_SPARSE",
    engine_class="mla_contract.backends.vllm.backend:CudaSparse",
)
