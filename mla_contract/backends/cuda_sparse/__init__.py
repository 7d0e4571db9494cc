"""The sparse MLA backend for CUDA: padded rows of positions. Its name stands here."""

from mla_contract.backends.registry import RegisteredBackend

BACKEND = RegisteredBackend(
    name="cuda_sparse",
    target="mla_contract.backends.cuda_sparse.target:fresh_target",
    engine_class="mla_contract.backends.vllm.backend:CudaSparse",
)
